"""One thread for all tests: the machine may have few cores, and the numbers do not depend on it."""

import torch

torch.set_num_threads(1)
