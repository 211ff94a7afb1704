"""One thread, as in the workers: a kernel that splits its work sums in another order."""

import torch

torch.set_num_threads(1)
