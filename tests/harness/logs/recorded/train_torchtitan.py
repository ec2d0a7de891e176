"""torchtitan's own logger and MetricsProcessor around a tiny model; memory is the process's own."""

import resource
from types import SimpleNamespace

import torch

from tests.oracles.stacks.blocks import import_titan

metrics = import_titan("components.metrics")
config = import_titan("config")
logging = import_titan("tools.logging")

WIDTH, VOCABULARY, TOKENS, STEPS = 512, 2048, 1024, 12
GIB = 2**30


class HostMemory:
    """What the monitor of a GPU says, of this process: a CPU has no caching allocator."""

    device_name = "cpu"

    def get_peak_stats(self) -> tuple[float, ...]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open("/proc/meminfo") as file:
            total = int(file.readline().split()[1]) * 1024
        share = 100 * peak / total
        return metrics.DeviceMemStats(peak / GIB, share, peak / GIB, share, 0, 0)

    def reset_peak_stats(self) -> None:
        """The kernel's peak is of the whole process."""


def main() -> None:
    """Train for a few steps, and let torchtitan write each."""
    logging.init_logger()
    torch.set_num_threads(1)
    metrics.build_device_memory_monitor = HostMemory
    metrics._build_metric_logger = lambda *_: metrics.BaseLogger()
    job = config.JobConfig()
    job.metrics.log_freq = 1
    writer = metrics.MetricsProcessor(job, SimpleNamespace(non_data_parallel_size=1))
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    )
    writer.num_flops_per_token = 6 * model[1].weight.numel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    logging.logger.info("Training starts at step 1")
    for step in range(1, STEPS + 1):
        tokens = torch.randint(VOCABULARY, (TOKENS,))
        writer.ntokens_since_last_log += tokens.numel()
        writer.data_loading_times.append(0.0)
        loss = torch.nn.functional.cross_entropy(model(tokens), tokens)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        writer.log(step, loss.item(), loss.item(), norm.item())
    logging.logger.info("Training completed")


if __name__ == "__main__":
    main()
