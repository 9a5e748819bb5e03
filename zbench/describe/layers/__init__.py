"""Plain data of a model's layers: the parameters of one, and experts with what may stand before them."""
