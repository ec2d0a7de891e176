"""Options of Megatron-LM's command line without effect on a step's memory and time, by subject.

Read in the wheels megatron-core 0.17.1, 0.18.2 and 0.19.2: training/arguments.py and the classes of
training/config that it makes options of.
"""

from typing import Final

ASIDE: Final = {
    "the length of the run": """
        exit_duration_in_mins exit_interval exit_signal exit_signal_handler
        exit_signal_handler_for_dataloader exit_signal_handler_for_training gpu_sniff_test_interval
        iterations_to_skip train_iters train_samples
    """,
    "validation": """
        eval_global_batch_size eval_interval eval_iters eval_micro_batch_size full_validation
        multiple_validation_sets skip_train start_eval_at_iter validation_set_names
    """,
    "the learning rate": """
        end_weight_decay lr_decay_iters lr_decay_samples lr_decay_style lr_warmup_fraction
        lr_warmup_init lr_warmup_iters lr_warmup_samples lr_wsd_decay_iters lr_wsd_decay_samples
        lr_wsd_decay_style no_weight_decay_cond_type override_opt_param_scheduler start_weight_decay
        use_checkpoint_opt_param_scheduler warmup weight_decay_incr_style
    """,
    "logging": """
        dump_param_to_param_group_map log_device_memory_used log_energy log_interval
        log_l2_norm_grad_to_tensorboard log_memory_interval log_memory_to_tensorboard
        log_params_norm log_progress log_runtime_to_tensorboard log_throughput
        log_throughput_to_tensorboard log_timers_to_tensorboard log_validation_ppl_to_tensorboard
        log_world_size_to_tensorboard logging_level memory_keys modules_to_filter
        moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits
        moe_routing_trace_dump_weights moe_routing_trace_max_training_iters moe_routing_trace_path
        no_filter_warnings no_log_loss_scale_to_tensorboard runtime_time_unit save_config_filepath
        set_level_for_all_loggers tensorboard_dir tensorboard_log_interval tensorboard_queue_size
        throughput_window_size timing_log_level timing_log_option wandb_entity wandb_exp_name
        wandb_project wandb_save_dir
    """,
    "checkpoints": """
        async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm async_save
        async_strategy auto_detect_ckpt_format ckpt_assume_constant_structure ckpt_convert_format
        ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format ckpt_fully_parallel_load
        ckpt_fully_parallel_load_exchange_algo
        ckpt_fully_parallel_load_process_group ckpt_fully_parallel_save
        ckpt_fully_parallel_save_process_group ckpt_step disable_msc dist_ckpt_format
        dist_ckpt_optim_fully_reshardable dist_ckpt_save_pre_mcore_014 dist_ckpt_strictness
        dist_ckpt_workers distrib_optim_fully_reshardable_mem_efficient enable_msc
        exit_on_missing_checkpoint finetune load load_main_params_from_ckpt
        logits_load_decode_threads logits_load_ignore_errors logits_load_kd_loss_alpha
        logits_load_msc_prefetch_depth logits_load_prefetch_factor logits_save_dtype
        logits_save_top_k logits_save_top_p logits_save_top_p_min_k most_recent_k
        no_ckpt_fully_parallel_save no_ckpt_load_validate_sharding_integrity no_load_optim
        no_load_rng no_save_optim no_save_rng no_save_tokenizer_assets no_stream_ckpt_dequant
        no_strict_fsdp_dtensor_load no_use_tokenizer_model_from_checkpoint_args
        non_persistent_ckpt_type non_persistent_global_ckpt_dir non_persistent_local_ckpt_algo
        non_persistent_local_ckpt_dir non_persistent_save_interval override_ckpt_iteration
        persistent_save_interval pretrained_checkpoint replication replication_factor
        replication_jump save save_activations_interval save_dgrads_interval save_interval
        save_params_interval save_retain_interval save_tokens_per_expert_interval
        save_wgrads_interval use_dist_ckpt use_mp_args_from_checkpoint_args
        use_persistent_ckpt_worker verify_integrity
    """,
    "the tokenizer": """
        chat_template merge_file no_pad_vocab_size
        no_tokenizer_sentencepiece_ignore_extra_whitespaces null_tokenizer_eod_id
        null_tokenizer_pad_id sft_tokenizer_prompt_format tiktoken_num_special_tokens
        tiktoken_pattern tiktoken_special_tokens tokenizer_hf_include_special_tokens
        tokenizer_hf_no_include_special_tokens tokenizer_hf_no_use_fast tokenizer_hf_use_fast
        tokenizer_metadata tokenizer_model tokenizer_sentencepiece_legacy tokenizer_special_tokens
        tokenizer_type trust_remote_code vocab_extra_ids vocab_file
    """,
    "random numbers": """
        data_parallel_random_init seed
    """,
    "profiling": """
        memory_snapshot_path nvtx_ranges profile profile_ranks profile_step_end profile_step_start
        pytorch_profiler_collect_callstack pytorch_profiler_collect_chakra
        pytorch_profiler_collect_shapes record_memory_history record_shapes use_pytorch_profiler
    """,
    "process launch": """
        distributed_timeout_minutes distributed_timeout_seconds_after_init flight_recorder_dump_path
        flight_recorder_include_stack_trace flight_recorder_trace_buffer_size lazy_mpu_init
        local_rank no_flight_recorder_dump_on_timeout no_flight_recorder_extra_dump_on_exec
        no_flight_recorder_include_only_active
    """,
    "fault tolerance": """
        adlr_autoresume adlr_autoresume_interval app_tag_run_name app_tag_run_version
        calc_ft_timeouts check_for_spiky_loss disable_straggler_on_startup enable_ft_package
        error_injection_rate error_injection_type ft_num_warmup_iters inprocess_active_world_size
        inprocess_barrier_timeout inprocess_completion_timeout inprocess_empty_cuda_cache
        inprocess_granularity inprocess_hard_timeout inprocess_heartbeat_interval
        inprocess_heartbeat_timeout inprocess_last_call_wait inprocess_max_iterations
        inprocess_monitor_process_interval inprocess_monitor_thread_interval
        inprocess_progress_watchdog_interval inprocess_soft_timeout inprocess_termination_grace_time
        log_straggler no_check_for_nan_in_loss no_one_logger one_logger_async one_logger_project
        one_logger_run_name rerun_mode result_rejected_tracker_filename
        run_workload_inspector_server straggler_ctrlr_port straggler_minmax_count
    """,
    "inference": """
        bert_embedder_type decode_only_cuda_graphs enable_chunked_prefill
        inference_batch_times_seqlen_threshold inference_coordinator_port
        inference_cuda_graph_all_prefills inference_cuda_graph_max_tokens
        inference_disable_ep_consensus inference_dynamic_batching
        inference_dynamic_batching_async_sched_mode inference_dynamic_batching_block_size
        inference_dynamic_batching_buffer_size_gb inference_dynamic_batching_cuda_graph_max_tokens
        inference_dynamic_batching_cuda_graph_mixed_prefill_count
        inference_dynamic_batching_cuda_graph_sizing_distribution
        inference_dynamic_batching_logprobs_mode inference_dynamic_batching_mamba_memory_ratio
        inference_dynamic_batching_max_requests inference_dynamic_batching_max_tokens
        inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_paused_buffer_size_gb
        inference_dynamic_batching_prefix_caching
        inference_dynamic_batching_prefix_caching_coordinator_policy
        inference_dynamic_batching_prefix_caching_eviction_policy
        inference_dynamic_batching_prefix_caching_mamba_gb
        inference_dynamic_batching_prefix_caching_routing_alpha
        inference_dynamic_batching_sampling_backend
        inference_dynamic_batching_track_generated_token_events
        inference_dynamic_batching_track_paused_request_events
        inference_dynamic_batching_unified_memory_level inference_logging_step_interval
        inference_max_requests inference_max_seq_length inference_shards
        inference_text_gen_server_logging inference_use_synchronous_zmq_collectives
        inference_wandb_logging mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype
        max_tokens_to_oom num_speculative_tokens output_bert_embeddings
        rl_inference_expert_model_parallel_size rl_inference_expert_tensor_model_parallel_size
        rl_inference_logprobs_is_correction rl_inference_model_unified_memory_level
        rl_inference_parsers rl_inference_pipeline_model_parallel_size
        rl_inference_tensor_model_parallel_size rl_offload_inference_model_weights_when_idle
        rl_offload_optimizer_during_inference use_legacy_static_engine
        use_same_sampling_seed_across_dp_ranks
    """,
    "models that are not language models": """
        bert_load bert_no_binary_head biencoder_projection_dim biencoder_shared_query_context_model
        classes_fraction dino_bottleneck_size dino_freeze_last_layer dino_head_hidden_size
        dino_local_crops_number dino_local_img_size dino_norm_last_layer dino_teacher_temp
        dino_warmup_teacher_temp dino_warmup_teacher_temp_epochs embedding_path head_lr_mult
        ict_head_size ict_load img_h img_w indexer_batch_size indexer_log_interval iter_per_epoch
        mask_factor mask_type num_channels num_classes patch_dim query_in_block_prob
        retriever_report_topk_accuracies retriever_score_scaling swin_backbone_type
        use_one_sent_docs vision_backbone_type vision_pretraining vision_pretraining_type
    """,
    "reinforcement learning": """
        grpo_clamp_eps_lower grpo_clamp_eps_upper grpo_entropy_term_weight
        grpo_filter_groups_with_same_reward grpo_group_size grpo_iterations grpo_kl_beta
        grpo_prompts_per_step langrl_env_config refit_method rl_consumption_granularity
        rl_default_temperature rl_default_top_k rl_default_top_p rl_generation_batch_size
        rl_generation_lag rl_importance_sampling_truncation_coef rl_kv_cache_management_mode
        rl_num_parallel_generation_batches rl_num_parallel_generations rl_parallel_generation_tasks
        rl_partial_rollouts rl_persist_cuda_graphs rl_profile rl_profile_dir rl_prompts_per_eval
        rl_sequence_packing_algo rl_sequence_packing_max_sequences_per_bin rl_skip_bos_token
        rl_submission_granularity rl_training_cuda_graphs rl_use_sequence_packing
        rl_verify_model_weights_swap
    """,
    "data": """
        allow_ambiguous_pad_tokens block_data_path data_args_path data_cache_path data_path
        data_per_class_fraction dataloader_defer_npy_index_mmap dataloader_fast_cache_load
        dataloader_type eod_mask_loss evidence_data_path fim_data fim_eod_token fim_fragment_rate
        fim_middle_token fim_no_prefix fim_pad_token fim_prefix_token fim_rate fim_split_sample
        fim_spm_rate fim_suffix_token mask_prob mid_level_dataset_surplus mock_data no_data_sharding
        no_mmap_bin_files num_dataset_builder_threads num_workers object_storage_cache_path
        per_dataset_sequences_path per_split_data_args_path phase_transition_iterations sample_rate
        short_seq_prob split test_data_path titles_data_path train_data_path valid_data_path
    """,
    "the rotary table": """
        no_yarn_correction_range_round_to_int yarn_beta_fast yarn_beta_slow
        yarn_correction_range_round_to_int yarn_original_max_position_embeddings
    """,
}
"""Subject -> names of options, which Megatron-LM writes with dashes."""
