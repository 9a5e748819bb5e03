"""The names of clusters, devices and models, which records have as text."""


def check_name(field: str, value: object) -> None:
    """Refuses a name that is no text, as the number that a yaml makes of name: 4090.

    Raises:
        ValueError: the message names `field`.
    """
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}; it takes text, as in '{value}'")
