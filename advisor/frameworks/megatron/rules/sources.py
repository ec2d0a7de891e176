"""Where megatron-core states each rule: file and line in every release that was read."""

from typing import Final

from advisor.frameworks.megatron.revisions import Revision

_READ: Final = ("0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19")

# Line of the condition or of the raise in transformer/transformer_config.py of the wheels
# 0.13.1, 0.14.0, 0.15.3, 0.16.1, 0.17.1, 0.18.2, 0.19.2; 0 where the release lacks the rule.
_CONFIG_LINES: Final[dict[str, tuple[int, ...]]] = {
    "sequence_parallel_needs_tp": (356, 359, 359, 411, 408, 417, 504),
    "attention_heads_divide_by_tp": (646, 681, 743, 924, 1056, 1195, 1323),
    "query_groups_match_tp": (661, 696, 758, 940, 1072, 1211, 1339),
    "fp8_delayed_bf16_layers": (669, 704, 766, 990, 1122, 1260, 1402),
    "fp8_bf16_layer_counts": (680, 715, 777, 1001, 1133, 1271, 1413),
    "fp8_custom_recipe": (0, 0, 0, 1019, 1151, 1289, 1431),
    "fp8_param_needs_fp8": (698, 733, 795, 1027, 1159, 1297, 1439),
    "fp8_output_proj": (0, 0, 0, 0, 0, 1300, 1442),
    "fp4_with_fp8": (0, 0, 802, 1034, 1166, 1312, 1454),
    "cpu_offloading_num_layers": (757, 808, 887, 1137, 1317, 1527, 1707),
    "cpu_offloading_pipeline": (764, 815, 894, 1144, 1324, 1534, 1714),
    "cpu_offloading_recompute": (769, 820, 899, 1149, 1329, 1539, 1719),
    "recompute_granularity": (775, 826, 905, 1155, 1335, 1545, 1725),
    "recompute_method": (782, 833, 912, 1162, 1342, 1552, 1732),
    "full_needs_method": (786, 837, 916, 1166, 1346, 1556, 1736),
    "full_needs_num_layers": (792, 843, 922, 1172, 1352, 1562, 1742),
    "selective_num_layers": (799, 850, 929, 1179, 1359, 1569, 1749),
    "distribute_with_sequence_parallel": (807, 858, 937, 1187, 1367, 1577, 1757),
    "recompute_modules": (819, 878, 957, 1207, 1387, 1597, 1778),
    "moe_act_needs_grouped_gemm": (825, 884, 963, 1213, 1393, 1603, 1784),
    "mla_up_proj_needs_mla": (830, 889, 968, 1218, 1398, 1608, 1789),
    "gdn_norm_out_needs_gdn": (0, 0, 0, 0, 0, 0, 1795),
    "shared_experts_overlap": (0, 903, 982, 1232, 1412, 1622, 1812),
    "fp8_layernorm_recompute": (846, 914, 993, 1243, 1423, 1633, 1823),
    "fp8_recompute_te_version": (0, 919, 998, 1248, 1428, 1638, 1828),
    "moe_layer_recompute_with_full": (853, 931, 1010, 1260, 1440, 1650, 1840),
    "offload_with_cpu_offloading": (0, 0, 0, 1269, 1449, 1659, 1849),
    "offload_needs_modules": (0, 0, 0, 1272, 1452, 1662, 1852),
    "offload_modules": (0, 0, 0, 1282, 1462, 1672, 1863),
    "offload_attn_proj": (0, 0, 0, 1287, 1467, 1677, 1868),
    "offload_inside_moe": (0, 0, 0, 0, 0, 0, 1874),
    "offload_fused_group_mlp": (0, 0, 0, 0, 0, 0, 1895),
    "cuda_graph_flags": (0, 0, 1373, 1670, 1912, 2141, 2365),
    "cuda_graph_impl": (0, 0, 1390, 1716, 1958, 2222, 2446),
    "cuda_graph_modules": (0, 0, 0, 1712, 1954, 2217, 2441),
    "cuda_graph_full_iteration": (0, 0, 0, 1738, 1980, 2237, 2461),
    "cuda_graph_cpu_offloading": (1171, 1268, 1395, 1722, 1964, 2243, 2467),
    "cuda_graph_any_recompute": (1173, 1270, 1402, 0, 0, 0, 0),
    "cuda_graph_attn_recompute": (0, 0, 1406, 0, 0, 0, 0),
    "cuda_graph_full_recompute": (0, 0, 0, 1781, 2023, 2298, 2522),
    "cuda_graph_router_recompute": (0, 0, 0, 1792, 2034, 2309, 2533),
    "cuda_graph_attention_dropout": (0, 0, 0, 1805, 2047, 2321, 2545),
    "cuda_graph_hidden_dropout": (0, 0, 0, 1812, 2054, 2329, 2553),
    "cuda_graph_offload": (0, 0, 0, 0, 0, 2348, 2616),
    "cp_comm_type_per_layer": (1203, 1350, 1493, 1930, 2172, 2485, 2780),
    "deferred_wgrad_needs_pipeline": (369, 372, 372, 424, 421, 439, 544),
    "gated_delta_net_context_parallel": (0, 0, 0, 983, 1115, 0, 0),
    "expert_parallel_needs_experts": (704, 739, 808, 1048, 1180, 1326, 1468),
    "experts_are_positive": (707, 742, 811, 1051, 1231, 1389, 1531),
    "expert_size_needs_experts": (716, 751, 820, 1060, 1240, 0, 0),
    "flex_dispatcher_padding": (725, 760, 829, 1078, 1258, 1455, 1604),
    "shared_expert_size": (731, 766, 835, 1085, 1265, 1462, 1639),
    "shared_expert_overlap_dispatcher": (739, 774, 843, 1093, 1273, 1471, 1648),
    "capacity_needs_auxiliary_loss": (747, 792, 866, 1116, 1296, 1494, 1671),
    "padding_needs_capacity": (753, 804, 883, 1133, 1313, 1511, 1688),
    "expert_bias_under_etp": (0, 0, 1303, 1590, 1832, 2057, 2281),
    "router_bias_needs_sigmoid": (1104, 1201, 1307, 1594, 1836, 2064, 2288),
    "router_padding": (1124, 1221, 1327, 1623, 1865, 2094, 2318),
    "single_expert_softmax": (1140, 1237, 1343, 1640, 1882, 2111, 2335),
    "paged_stash": (0, 0, 0, 0, 0, 1684, 1905),
    "cuda_graph_router_modules": (0, 0, 0, 1745, 1987, 2262, 2486),
    "cuda_graph_experts_of_dense": (0, 0, 0, 1754, 1996, 2271, 2495),
    "cuda_graph_mlp_of_experts": (0, 0, 0, 1760, 2002, 2277, 2501),
    "cuda_graph_dropless": (0, 0, 0, 1769, 2011, 2286, 2510),
    "cuda_graph_router_jitter": (0, 0, 0, 1823, 2065, 2347, 2571),
    "expert_overlap_needs_chunks": (0, 1304, 1447, 1858, 2100, 2405, 2675),
    "expert_overlap_needs_experts": (0, 1310, 1453, 1864, 2106, 2411, 2681),
    "expert_overlap_dispatcher": (0, 1314, 1457, 1868, 2110, 2415, 2685),
    "expert_overlap_full_recompute": (0, 1318, 1461, 1872, 2114, 2419, 2689),
    "expert_overlap_moe_recompute": (0, 0, 0, 0, 2123, 2428, 2698),
    "expert_overlap_shared_experts": (0, 1333, 1476, 1887, 2132, 2437, 2707),
    "expert_overlap_mtp": (0, 1336, 1479, 1890, 2135, 2440, 2712),
    "expert_overlap_graphs": (0, 0, 0, 1903, 2148, 2448, 2743),
    "delayed_wgrad_needs_overlap": (0, 1342, 1485, 1911, 2156, 2456, 2751),
}
_OTHER_FILES: Final = {
    "sequence_parallel_needs_tp": "model_parallel_config.py",
    "deferred_wgrad_needs_pipeline": "model_parallel_config.py",
}

# Line of the assert in megatron/training/arguments.py of the wheels 0.17.1, 0.18.2, 0.19.2; the
# older wheels do not ship that file.
_ARGUMENT_LINES: Final[dict[str, tuple[int, ...]]] = {
    "distribute_needs_tp": (1176, 1356, 1371),
    "distribute_needs_full": (1179, 1359, 1374),
    "selective_with_method": (1191, 1371, 1386),
    "offload_needs_te_impl": (1548, 1723, 1855),
    "offload_environment": (1551, 1726, 1858),
    "graphs_with_expandable_segments": (1575, 1749, 1881),
    "hierarchical_sizes": (473, 580, 564),
    "checkpoint_activations": (492, 599, 583),
    "recompute_activations": (498, 605, 589),
}


def stated_in(rule: str, revision: Revision) -> bool:
    """Whether the release states the rule: its column of the table above is not 0. The releases
    before and after those that were looked up are like the first and the last of them."""
    lines = _CONFIG_LINES.get(rule)
    if lines is None:
        return True
    oldest, newest = (0, 13), (0, 19)
    column = min(max(revision.number, oldest), newest)[1] - oldest[1]
    return lines[column] > 0


def source_of(rule: str, revision: Revision) -> str:
    """``megatron-core 0.19.2 transformer_config.py:1733``; no line where it was not looked up."""
    readable: tuple[str, ...] = _READ
    if rule in _ARGUMENT_LINES:
        lines, readable, file = _ARGUMENT_LINES[rule], _READ[-3:], "training/arguments.py"
    else:
        lines = _CONFIG_LINES.get(rule, ())
        file = _OTHER_FILES.get(rule, "transformer_config.py")
    if revision.core == "main":
        return f"Megatron-LM main d98e8a6 {file}"
    line = dict(zip(readable, lines, strict=False)).get(revision.core, 0)
    where = f"{file}:{line}" if line else file
    return f"megatron-core {revision.read_at} {where}"
