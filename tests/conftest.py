"""One thread, as in the workers: a kernel that splits its work sums in another order. Ctrl-C as in a shell's foreground: in
its background it is ignored, and so it would be by all that the tests start. And failures that show their values, also
where the assertion is in `support`."""

import signal

import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("support")
settings.register_profile("long")  # for support.long_forms
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
