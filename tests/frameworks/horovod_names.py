"""Horovod's interface, name by name: is each here under the shim, with its parameters?

    PYTHONPATH=client/python:client/python/horovod_shim python horovod_names.py horovod.mxnet ...

prints JSON: {"checked": number of names, "wrong": [what is not as the table says]} for these modules and their
submodules, in a Python that has the framework. The table is Horovod 0.28's public interface. Parameters are equal if
ours begin with Horovod's names, in their order, with their defaults; more may follow, with defaults.
"""

import ast
import importlib
import inspect
import json
import re
import sys

TABLE = {
    "horovod.tensorflow": """
        allreduce(tensor, average=None, device_dense='', device_sparse='', compression=Compression.none,
            op=None, prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=global_process_set,
            ignore_name_scope=False)
        reducescatter(tensor, device_dense='', compression=Compression.none, op=Average, name=None,
            process_set=global_process_set, ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0)
        grouped_allreduce(tensors, average=None, device_dense='', device_sparse='',
            compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0,
            process_set=global_process_set, ignore_name_scope=False, name=None)
        grouped_reducescatter(tensors, device_dense='', compression=Compression.none, op=Average,
            process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)
        broadcast_global_variables(root_rank)
        BroadcastGlobalVariablesHook(root_rank, device='')
        BroadcastGlobalVariablesHook.begin(self)
        BroadcastGlobalVariablesHook.after_create_session(self, session, coord)
        DistributedOptimizer(optimizer, name=None, use_locking=False, device_dense='', device_sparse='',
            compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average,
            gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None,
            process_set=global_process_set, scale_local_gradients=True)
        DistributedGradientTape(gradtape, device_dense='', device_sparse='', compression=Compression.none,
            sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,
            process_set=global_process_set, scale_local_gradients=True)
        PartialDistributedGradientTape(gradtape, device_dense='', device_sparse='',
            compression=Compression.none, sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0,
            num_groups=0, groups=None, process_set=global_process_set, local_layers=None,
            scale_local_gradients=True)
    """,
    "horovod.tensorflow.mpi_ops": """
        init(*args, **kwargs)
        allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set)
        grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=global_process_set)
        broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set)
        broadcast_(variables, root_rank, name=None, process_set=global_process_set)
        alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set)
        join()
        size_op(process_set_id=0, name=None)
        process_set_included_op(process_set_id=0, name=None)
        local_size_op(name=None)
        rank_op(name=None)
        local_rank_op(name=None)
    """,
    "horovod.tensorflow.functions": """
        broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False)
        broadcast_object(obj, root_rank=0, session=None, name=None, process_set=global_process_set)
        broadcast_object_fn(root_rank=0, session=None, name=None, process_set=global_process_set)
        allgather_object(obj, session=None, name=None, process_set=global_process_set)
    """,
    "horovod.tensorflow.compression": """
        Compressor
        Compressor.compress(tensor)
        Compressor.decompress(tensor, ctx)
        NoneCompressor
        NoneCompressor.compress(tensor)
        NoneCompressor.decompress(tensor, ctx)
        FP16Compressor
        FP16Compressor.compress(tensor)
        FP16Compressor.decompress(tensor, ctx)
        Compression
    """,
    "horovod.tensorflow.elastic": """
        run(func)
        TensorFlowKerasState(model, optimizer=None, backend=None, **kwargs)
        TensorFlowKerasState.save(self)
        TensorFlowKerasState.restore(self)
        TensorFlowKerasState.sync(self)
        TensorFlowState(variables=None, session=None, **kwargs)
        TensorFlowState.save(self)
        TensorFlowState.restore(self)
        TensorFlowState.sync(self)
    """,
    "horovod.tensorflow.sync_batch_norm": """
        SyncBatchNormalization(fused=False, **kwargs)
        SyncBatchNormalization.call(self, *args, **kwargs)
    """,
    "horovod.tensorflow.gradient_aggregation": """
        apply_op_to_not_none_tensors(tensor_op, tensors, *args)
        get_not_none_from_list(tensor_list)
        LocalGradientAggregationHelper(backward_passes_per_step, allreduce_func, sparse_as_dense,
            average_aggregated_gradients, rank, optimizer_type, process_set=global_process_set,
            scale_local_gradients=True, name='')
        LocalGradientAggregationHelper.register_local_var(self, var)
        LocalGradientAggregationHelper.compute_gradients(self, grads, vars)
        LocalGradientAggregationHelper.apply_gradients(self, apply_grads_closure, optimizer, *args, **kwargs)
    """,
    "horovod.tensorflow.gradient_aggregation_eager": """
        LocalGradientAggregationHelperEager(backward_passes_per_step, allreduce_func, sparse_as_dense,
            average_aggregated_gradients, process_set=global_process_set, scale_local_gradients=True)
        LocalGradientAggregationHelperEager.register_local_var(self, var)
        LocalGradientAggregationHelperEager.compute_gradients(self, grads, vars)
        LocalGradientAggregationHelperEager.apply_gradients(self, apply_grads_closure, optimizer, *args,
            **kwargs)
    """,
    "horovod.tensorflow.util": """
        vars_to_refs(vars)
        refs_to_vars(refs)
    """,
    "horovod.tensorflow.keras": """
        DistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='',
            compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average,
            backward_passes_per_step=1, average_aggregated_gradients=False, num_groups=0, groups=None,
            process_set=global_process_set, scale_local_gradients=True)
        broadcast_global_variables(root_rank)
        allreduce(value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None,
            compression=Compression.none)
        allgather(value, name=None)
        broadcast(value, root_rank, name=None)
        reducescatter(value, name=None, op=Average)
        load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none,
            legacy_opts=False)
    """,
    "horovod.tensorflow.keras.callbacks": """
        BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
        MetricAverageCallback(device='')
        LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
            momentum_correction=True, steps_per_epoch=None)
        LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None,
            verbose=0)
        BestModelCheckpoint(monitor='val_loss', verbose=0, save_weights_only=False, mode='auto',
            save_freq='epoch')
    """,
    "horovod.tensorflow.keras.elastic": """
        KerasState(model, optimizer=None, **kwargs)
        CommitStateCallback(state, batches_per_commit=1)
        UpdateBatchStateCallback(state)
        UpdateEpochStateCallback(state)
    """,
    "horovod.keras": """
        DistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='',
            compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average,
            num_groups=0, groups=None)
        PartialDistributedOptimizer(optimizer, name=None, device_dense='', device_sparse='',
            compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average,
            backward_passes_per_step=1, average_aggregated_gradients=False, groups=None,
            process_set=global_process_set, local_layers=None, scale_local_gradients=True)
        broadcast_global_variables(root_rank)
        allreduce(value, name=None, average=True, prescale_factor=1.0, postscale_factor=1.0, op=None,
            compression=Compression.none)
        allgather(value, name=None)
        broadcast(value, root_rank, name=None)
        reducescatter(value, name=None, op=Average)
        load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none,
            legacy_opts=False)
    """,
    "horovod.keras.callbacks": """
        BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
        MetricAverageCallback(device='')
        LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
            momentum_correction=True, steps_per_epoch=None)
        LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None,
            verbose=0)
        BestModelCheckpoint(monitor='val_loss', verbose=0, mode='auto', save_freq='epoch')
    """,
    "horovod.keras.elastic": """
        KerasState(model, optimizer=None, **kwargs)
        CommitStateCallback(state, batches_per_commit=1)
        UpdateBatchStateCallback(state)
        UpdateEpochStateCallback(state)
    """,
    "horovod.mxnet": """
        DistributedOptimizer(optimizer, gradient_predivide_factor=1.0, num_groups=0,
            process_set=global_process_set)
        DistributedOptimizer.create_state(self, index, weight)
        DistributedOptimizer.create_state_multi_precision(self, index, weight)
        DistributedOptimizer.update(self, index, weight, grad, state)
        DistributedOptimizer.update_multi_precision(self, index, weight, grad, state)
        DistributedOptimizer.set_learning_rate(self, lr)
        DistributedOptimizer.set_lr_mult(self, args_lr_mult)
        DistributedOptimizer.set_wd_mult(self, args_wd_mult)
        DistributedTrainer(params, optimizer, optimizer_params=None, compression=Compression.none,
            gradient_predivide_factor=1.0, prefix=None, num_groups=0, process_set=global_process_set)
        broadcast_parameters(params, root_rank=0, prefix=None)
    """,
    "horovod.mxnet.mpi_ops": """
        init(*args, **kwargs)
        allreduce(tensor, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0,
            process_set=global_process_set, op=None)
        allreduce_(tensor, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0,
            process_set=global_process_set, op=None)
        grouped_allreduce(tensors, average=None, name=None, priority=0, prescale_factor=1.0,
            postscale_factor=1.0, process_set=global_process_set, op=None)
        grouped_allreduce_(tensors, average=None, name=None, priority=0, prescale_factor=1.0,
            postscale_factor=1.0, process_set=global_process_set, op=None)
        allgather(tensor, name=None, priority=0, process_set=global_process_set)
        grouped_allgather(tensors, name=None, priority=0, process_set=global_process_set)
        broadcast(tensor, root_rank, name=None, priority=0, process_set=global_process_set)
        broadcast_(tensor, root_rank, name=None, priority=0, process_set=global_process_set)
        alltoall(tensor, splits=None, name=None, priority=0, process_set=global_process_set)
        reducescatter(tensor, op=Average, name=None, priority=0, process_set=global_process_set,
            prescale_factor=1.0, postscale_factor=1.0)
        grouped_reducescatter(tensors, op=Average, name=None, priority=0, process_set=global_process_set,
            prescale_factor=1.0, postscale_factor=1.0)
    """,
    "horovod.mxnet.functions": """
        broadcast_object(obj, root_rank=0, name=None)
        allgather_object(obj, name=None)
    """,
    "horovod.mxnet.compression": """
        Compressor
        Compressor.compress(tensor)
        Compressor.decompress(tensor, ctx)
        NoneCompressor
        NoneCompressor.compress(tensor)
        NoneCompressor.decompress(tensor, ctx)
        FP16Compressor
        FP16Compressor.compress(tensor)
        FP16Compressor.decompress(tensor, ctx)
        Compression
    """,
    "horovod.tensorflow.data.compute_service": """
        TfDataServiceConfig
        TfDataServiceConfig.compute_client(self, verbose=1)
        TfDataServiceConfig.to_dict(self)
        TfDataServiceConfig.from_dict(config)
        TfDataServiceConfig.write(self, filename)
        TfDataServiceConfig.read(filename, wait_for_file_creation=False)
        tf_data_service(compute_config, rank)
        send_to_data_service(dataset, compute_config, rank, size=None, processing_mode='distributed_epoch',
            reuse_dataset=False, round_robin=False)
        compute_worker_fn(compute_config)
    """,
    "horovod.tensorflow.data.compute_worker": """
        main(dispatchers, dispatcher_side, configfile, timeout)
    """,
    "horovod.spark": """
        run(fn, args=(), kwargs={}, num_proc=None, start_timeout=None, use_mpi=None, use_gloo=None,
            extra_mpi_args=None, env=None, stdout=None, stderr=None, verbose=1, nics=None,
            prefix_output_with_timestamp=False, executable=None)
        run_elastic(fn, args=(), kwargs={}, num_proc=None, min_num_proc=None, max_num_proc=None,
            start_timeout=None, elastic_timeout=None, reset_limit=None, env=None, stdout=None, stderr=None,
            verbose=1, nics=None, prefix_output_with_timestamp=False, min_np=None, max_np=None)
    """,
    "horovod.spark.task": """
        get_available_devices()
    """,
    "horovod.spark.common.backend": """
        default_num_proc()
        Backend
        Backend.run(self, fn, args=(), kwargs={}, env=None)
        Backend.num_processes(self)
        SparkBackend(num_proc=None, env=None)
        SparkBackend.run(self, fn, args=(), kwargs={}, env=None)
        SparkBackend.num_processes(self)
    """,
    "horovod.spark.common.store": """
        Store
        Store.create(prefix_path, *args, **kwargs)
        FilesystemStore(prefix_path, *args, **kwargs)
        FilesystemStore.get_filesystem(self)
        FilesystemStore.get_full_path(self, path)
        FilesystemStore.get_localized_path(self, path)
        FilesystemStore.is_parquet_dataset(self, path)
        FilesystemStore.get_parquet_dataset(self, path)
        FilesystemStore.get_train_data_path(self, idx=None)
        FilesystemStore.get_val_data_path(self, idx=None)
        FilesystemStore.get_test_data_path(self, idx=None)
        FilesystemStore.saving_runs(self)
        FilesystemStore.get_runs_path(self)
        FilesystemStore.get_run_path(self, run_id)
        FilesystemStore.get_checkpoint_path(self, run_id)
        FilesystemStore.get_checkpoints(self, run_id, suffix='.ckpt')
        FilesystemStore.get_logs_path(self, run_id)
        FilesystemStore.get_checkpoint_filename(self)
        FilesystemStore.get_logs_subdir(self)
        FilesystemStore.exists(self, path)
        FilesystemStore.read(self, path)
        FilesystemStore.write_text(self, path, text)
        FilesystemStore.get_local_output_dir_fn(self, run_id)
        FilesystemStore.sync_fn(self, run_id)
        LocalStore(*args, **kwargs)
        HDFSStore
        DBFSLocalStore
    """,
    "horovod.spark.common.estimator": """
        HorovodEstimator
        HorovodEstimator.fit(self, df, params=None)
        HorovodEstimator.fit_on_parquet(self, params=None)
        HorovodModel
        HorovodModel.transform(self, df, params=None)
    """,
    "horovod.spark.common.params": """
        EstimatorParams
        EstimatorParams.setNumProc(self, value)
        EstimatorParams.getNumProc(self)
        EstimatorParams.setShufflingBufferSize(self, value)
        EstimatorParams.getInMemoryCacheAll(self)
        EstimatorParams.getTrainReaderNumWorker(self)
        ModelParams
        ModelParams.setLabelColoumns(self, value)
        ModelParams.getLabelColumns(self)
        ModelParams.setOutputCols(self, value)
    """,
    "horovod.common.basics": """
        HorovodBasics(pkg_path, *args)
        HorovodBasics.init(self, comm=None, process_sets=None)
        HorovodBasics.shutdown(self)
        HorovodBasics.is_initialized(self)
        HorovodBasics.start_timeline(self, file_path, mark_cycles=False)
        HorovodBasics.stop_timeline(self)
        HorovodBasics.size(self)
        HorovodBasics.local_size(self)
        HorovodBasics.cross_size(self)
        HorovodBasics.rank(self)
        HorovodBasics.local_rank(self)
        HorovodBasics.cross_rank(self)
        HorovodBasics.is_homogeneous(self)
        HorovodBasics.mpi_threads_supported(self)
        HorovodBasics.mpi_enabled(self)
        HorovodBasics.mpi_built(self)
        HorovodBasics.gloo_enabled(self)
        HorovodBasics.gloo_built(self)
        HorovodBasics.nccl_built(self)
        HorovodBasics.ddl_built(self)
        HorovodBasics.ccl_built(self)
        HorovodBasics.cuda_built(self)
        HorovodBasics.rocm_built(self)
    """,
    "horovod.common.process_sets": """
        ProcessSet(ranks_or_comm)
        ProcessSet.size(self)
        ProcessSet.rank(self)
        ProcessSet.included(self)
        add_process_set(process_set)
        remove_process_set(process_set)
    """,
    "horovod.ray": """
        RayExecutor(settings, num_workers=None, num_hosts=None, num_workers_per_host=1, cpus_per_worker=1, use_gpu=False,
            gpus_per_worker=None, use_current_placement_group=True, min_workers=None, max_workers=None, reset_limit=None,
            cooldown_range=None, elastic_timeout=600, override_discovery=True)
        RayExecutor.create_settings(timeout_s=30, ssh_identity_file=None, ssh_str=None, placement_group_timeout_s=100,
            nics=None)
        RayExecutor.start(self, executable_cls=None, executable_args=None, executable_kwargs=None, extra_env_vars=None)
        RayExecutor.execute(self, fn, callbacks=None)
        RayExecutor.run(self, fn, args=None, kwargs=None, callbacks=None)
        RayExecutor.run_remote(self, fn, args=None, kwargs=None)
        RayExecutor.execute_single(self, fn)
        RayExecutor.shutdown(self)
        ElasticRayExecutor(settings, use_gpu=False, cpus_per_slot=1, gpus_per_slot=None, env_vars=None,
            override_discovery=True)
        ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=None, reset_limit=None, elastic_timeout=600,
            timeout_s=30, ssh_identity_file=None, nics=None, min_np=None, max_np=None)
        ElasticRayExecutor.start(self)
        ElasticRayExecutor.run(self, worker_fn, callbacks=None)
        BaseHorovodWorker(world_rank=0, world_size=1)
    """,
    "horovod.ray.runner": """
        RayExecutor
        MiniSettings(nics=None, verbose=1, key=None, ssh_port=None, ssh_identity_file=None, timeout_s=300,
            placement_group_timeout_s=100, elastic=False)
    """,
    "horovod.ray.elastic": """
        ElasticRayExecutor
        RayHostDiscovery(use_gpu=False, cpus_per_slot=1, gpus_per_slot=1)
        RayHostDiscovery.find_available_hosts_and_slots(self)
        TestDiscovery(min_hosts, max_hosts, change_frequency_s, use_gpu=False, cpus_per_slot=1, gpus_per_slot=1,
            verbose=True, _graceful=True)
    """,
    "horovod.ray.elastic_v2": """
        RayHostDiscovery(use_gpu=False, cpus_per_worker=1, gpus_per_worker=1)
        RayHostDiscovery.find_available_hosts_and_slots(self)
        TestDiscovery(min_hosts, max_hosts, change_frequency_s, use_gpu=False, cpus_per_worker=1, gpus_per_worker=1,
            verbose=True, _graceful=True)
    """,
    "horovod.ray.worker": """
        BaseHorovodWorker(world_rank=0, world_size=1)
        BaseHorovodWorker.hostname(self)
        BaseHorovodWorker.node_id(self)
        BaseHorovodWorker.get_gpu_ids(self)
        BaseHorovodWorker.update_env_vars(self, env_vars)
        BaseHorovodWorker.env_vars(self)
        BaseHorovodWorker.start_executable(self, executable_cls=None, executable_args=None, executable_kwargs=None)
        BaseHorovodWorker.execute(self, func)
        BaseHorovodWorker.set_queue(self, queue)
    """,
    "horovod.ray.ray_logger": """
        configure(queue)
        log(info_dict, chief_only=True)
    """,
}

# What is not there, or differs, and why: also rows of the compat tables in docs/.
DIFFERENT = {
    "horovod.tensorflow.keras.allreduce": "compression=None means Compression.none",
    "horovod.keras.allreduce": "average=None means True, so that op can be given alone",
    "horovod.keras.callbacks.BestModelCheckpoint": "also has save_weights_only, as horovod.tensorflow.keras's",
}

_EMPTY = inspect.Parameter.empty


def rows(module):
    """The names of a module, with (name, default or None) of each parameter; None for what is no function or takes
    anything (*args)."""
    text = re.sub(r"\n {12}", " ", TABLE[module])
    for row in filter(None, map(str.strip, text.split("\n"))):
        name, found, rest = row.partition("(")
        yield name, _parameters(found + rest) if found else None


def _parameters(text):
    arguments = ast.parse(f"def f{text}: pass").body[0].args
    if arguments.vararg:
        return None
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + [ast.unparse(d) for d in arguments.defaults]
    return [(a.arg, d) for a, d in zip(arguments.args, defaults) if a.arg != "self"]


def _ours(function):
    found = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _find(module, name):
    from horovod.common import basics  # pylint: disable=import-outside-toplevel
    found = importlib.import_module(module)
    for part in name.split("."):
        # The functions of HorovodBasics are attributes of its objects.
        found = getattr(found() if found is basics.HorovodBasics else found, part)
    return found


def wrong(module, name, parameters):
    """What is wrong with a row; None if nothing is."""
    try:
        function = _find(module, name)
    except AttributeError:
        return "absent"
    if "." not in name and not function.__module__.startswith(("maypole.", "horovod.common.")):
        return f"is of {function.__module__}, not Maypole's"
    if parameters is None:
        return None
    ours = _ours(function)
    if [p.name for p in ours[:len(parameters)]] != [name for name, _ in parameters]:
        return f"has the parameters {[p.name for p in ours]}, expected {[name for name, _ in parameters]}"
    for parameter, (_, default) in zip(ours, parameters):
        if default is None:  # ours may have one
            continue
        want = _value(module, default)
        if parameter.default is not want and parameter.default != want:
            return f"{parameter.name}={parameter.default!r}, expected {default}"
    more = [p.name for p in ours[len(parameters):] if p.default is _EMPTY]
    return f"also requires {more}" if more else None


def _value(module, text):
    """A default: a literal, or a name of the package."""
    from horovod.common import process_sets  # pylint: disable=import-outside-toplevel
    from maypole.common import constants  # pylint: disable=import-outside-toplevel
    names = dict(vars(constants), global_process_set=process_sets.global_process_set)
    package = re.match(r"horovod(\.tensorflow\.keras|\.\w+)", module).group(0)
    names["Compression"] = getattr(importlib.import_module(package), "Compression", None)
    return eval(text, {}, names)  # pylint: disable=eval-used


def main():
    checked, found = 0, []
    for module in TABLE:
        if not any(module == prefix or module.startswith(prefix + ".") for prefix in sys.argv[1:]):
            continue
        for name, parameters in rows(module):
            said, full = wrong(module, name, parameters), f"{module}.{name}"
            checked += 1
            if (said is None) == (full in DIFFERENT):
                found.append(f"{full}: {said or 'is as in Horovod, though DIFFERENT has it'}")
    print(json.dumps({"checked": checked, "wrong": found}))


if __name__ == "__main__":
    main()
