"""When a node's CPUs update parameters whose optimizer state is in host memory."""

AS_GRADIENTS_COME, AFTER_BACKWARD = HOST_UPDATES = ("as_gradients_come", "after_backward")
