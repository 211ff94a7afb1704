"""Torch's own tests of DistributedDataParallel, with a prepared model under `allreduce` in its place."""

from __future__ import annotations

import json
import subprocess
from functools import partial

import pytest

import plesio as ps
from support.ddp_tests import WORKERS, ddp_test
from support.programs import PYTHON

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RUN = [
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input",
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value",
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient",
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine",
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process",
    "test_ddp_broadcast_buffer",
    "test_ddp_create_graph",
    "test_ddp_forward_backward_hook",
    "test_ddp_namedtuple",
    "test_ddp_returns_tensor_with_no_grad",
    "test_ddp_zero_output_features",
    "test_stateless_api_with_ddp",
    "test_undefined_grad_parity_unused_parameters",
]
NOT_RUN = {
    "asks for DDP's own parts, settings or log, which a prepared model does not have: the reducer, buckets, a static graph": """
        test_ddp_apply_optim_in_backward_ignored_params test_ddp_build_debug_param_to_name_mapping
        test_ddp_build_debug_param_to_name_mapping_requires_grad test_ddp_compile_static_graph test_ddp_device
        test_ddp_has_finalized test_ddp_ignore_params_arg test_ddp_init_sync_buffers_with_forward_sync_buffers_false
        test_ddp_multiple_nested_unused_params_err_ignore_params test_ddp_new_tensor_in_fwd_static_graph
        test_ddp_remove_autograd_hooks test_ddp_sink_noclone test_ddp_static_graph_nested_types test_ddp_sync_module_states
        test_detect_ddp_is_actually_static test_different_graph_across_ranks test_get_data_parallel_params
        test_invalid_static_graph test_skip_all_reduce_unused_parameters test_static_graph_api_cpu
        test_static_graph_multi_forward test_sync_bn_logged
    """,
    "registers a hook for communication; a strategy's codec packs what is sent": """
        test_accumulate_gradients_no_sync_allreduce_hook test_accumulate_gradients_no_sync_allreduce_with_then_hook
        test_ddp_broadcast_buffer_via_hook test_ddp_buffer_hook_allreduce test_ddp_buffer_hook_allreduce_return_future
        test_ddp_comm_hook_logging test_ddp_hook_parity_allreduce test_ddp_hook_parity_allreduce_process_group
        test_ddp_hook_parity_post_localSGD test_ddp_hook_parity_powerSGD test_ddp_hook_pickling_powerSGD
        test_ddp_python_error_logged
    """,
    "counts on `join` where processes have uneven inputs; a run's workers may finish at other times without it": """
        test_ddp_control_flow_different_across_ranks test_ddp_control_flow_same_across_ranks
        test_ddp_grad_div_uneven_inputs test_ddp_join_model_equivalence test_ddp_join_respects_forward_sync_buffers_false
        test_ddp_logging_data_cpu test_ddp_logging_data_gpu test_ddp_uneven_input_exception
        test_ddp_uneven_input_join_disable test_ddp_uneven_inputs test_ddp_uneven_inputs_stop_iteration_sync_bn
        test_ddp_unused_params_rebuild_buckets_exception
    """,
    "counts on `no_sync`, which in shared memory there is not: `allreduce('torch')` has DDP's": """
        test_accumulate_gradients_no_sync test_accumulate_gradients_no_sync_grad_is_view
        test_grads_same_across_ranks_with_no_sync
    """,
    "wraps several models, one after the other; a run trains one": """
        test_DistributedDataParallel test_DistributedDataParallel_SyncBatchNorm
        test_DistributedDataParallel_SyncBatchNorm_Channels_Last test_ddp_apply_optim_in_backward
        test_ddp_apply_optim_in_backward_grad_as_bucket_view_false test_ddp_broadcast_buffers_deprecation_warning
        test_ddp_bucket_cap_mb_list test_ddp_device_mesh_initialization test_ddp_inference test_ddp_new_tensor_in_fwd
        test_ddp_shared_grad_acc_unused_params test_output_unused_in_loss_dict_module
        test_output_unused_in_loss_tuple_module
    """,
    "is of GPUs: streams, float16, mixed precision by DDP": """
        test_DistributedDataParallel_SyncBatchNorm_half test_DistributedDataParallel_non_default_stream
        test_DistributedDataParallel_with_amp_and_grad_is_view
        test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none
        test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none
        test_ddp_native_mixed_precision_ignored_params
        test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none
        test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none
    """,
    "looks for DDP's calls in a profile": """
        test_ddp_profiling_autograd_profiler test_ddp_profiling_execution_trace test_ddp_profiling_torch_profiler
        test_ddp_sync_bn_training_vs_eval
    """,
    "wants DDP's error or warning, of its class or in its words; plesio has its own": """
        test_DistributedDataParallel_requires_grad test_ddp_model_diff_num_params_across_ranks
        test_ddp_model_diff_shape_across_ranks test_ddp_multiple_nested_unused_params_error
    """,
    "averages models by torch's own averager, in an optimizer around the user's; here that is a strategy, `post_local_sgd`": """
        test_post_localSGD_optimizer_parity test_post_localSGD_optimizer_parity_grad_is_view
        test_post_localSGD_optimizer_parity_with_hierarchical_sgd
        test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view test_post_localSGD_optimizer_step_reload
    """,
    "wraps nothing": """
        test_DistributedSampler_padding test_SyncBatchNorm_process_group test_dump_DDP_relevant_env_vars
    """,
}
"""Why these cannot be run."""


@pytest.mark.parametrize("name", RUN)
def test_it_goes_as_with_ddp(name: str) -> None:
    pytest.importorskip("expecttest", reason="torch's own tests need it")
    assert ps.run(partial(ddp_test, name=name), "allreduce", workers=WORKERS).returned == [name] * WORKERS


def test_each_test_of_ddp_is_run_or_has_a_reason_why_not() -> None:
    pytest.importorskip("expecttest", reason="torch's own tests need it")
    found = subprocess.run([*PYTHON, "-m", "support.ddp_tests"], capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stderr
    known = [*RUN, *(name for names in NOT_RUN.values() for name in names.split())]
    assert sorted(json.loads(found.stdout.splitlines()[-1])) == sorted(known)
