"""One thread, as in the workers: a kernel that splits its work sums in another order. And failures that show their values,
also where the assertion is in `support`."""

import pytest
import torch

pytest.register_assert_rewrite("support")
torch.set_num_threads(1)
