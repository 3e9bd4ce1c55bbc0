"""A Flower app with FedSWA, FedMoSWA or SCAFFOLD: copy it, put your model and your data into `task.py`."""
