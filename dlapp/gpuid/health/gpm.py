"""Activity of a GPU's multiprocessors, from NVML's GPU Performance Monitoring (GPM).

The utilisation that NVML reports is the share of time in which any kernel was on the GPU, also one that only waits for
another rank. GPM counts the multiprocessors that were busy between two samples; also those of a MIG device, whose
utilisation is not known. GPUs have it from Hopper on.

Source: NVML API Reference, "GPM Functions", "GPM Structs"; the metrics are in percent.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

_MIN_INTERVAL_S = 0.1
"""Minimum time between two samples. Source: NVML API Reference, nvmlGpmSampleGet."""


class GpmMeter:
    """Meter of one GPU, or of one GPU instance of it: a MIG device shares it with the others of its instance.

    Two samples are kept and used in turn, so a reading takes two calls of NVML.

    Args:
        nvml: the initialized module pynvml.
        gpu: handle of the whole GPU.
        instance: id of its GPU instance; None: the whole GPU.
    """

    def __init__(self, nvml: Any, gpu: Any, instance: int | None) -> None:
        self._nvml, self._gpu, self._instance = nvml, gpu, instance
        self._sampled_s = 0.0
        self._samples: list[Any] = []
        try:
            if nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
                self._samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
                self._take(self._samples[1])
        except (nvml.NVMLError, AttributeError):  # an older driver, or an older nvidia-ml-py
            self.close()

    def activity(self) -> float | None:
        """Return the mean share of busy multiprocessors since the last call, 0 to 1; None: not known."""
        nvml = self._nvml
        if not self._samples or time.monotonic() - self._sampled_s < _MIN_INTERVAL_S:
            return None
        now, before = self._samples
        wanted = nvml.c_nvmlGpmMetricsGet_t(nvml.NVML_GPM_METRICS_GET_VERSION, 1, before, now)
        wanted.metrics[0] = nvml.c_nvmlGpmMetric_t(nvml.NVML_GPM_METRIC_SM_UTIL)
        try:
            self._take(now)
            nvml.nvmlGpmMetricsGet(wanted)
        except nvml.NVMLError:
            self.close()  # a failed GPU is noticed by other queries
            return None
        self._samples.reverse()
        metric = wanted.metrics[0]
        # A comparison with NaN is false.
        is_known = metric.nvmlReturn == nvml.NVML_SUCCESS and metric.value >= 0
        return min(metric.value, 100.0) / 100 if is_known else None

    def _take(self, sample: Any) -> None:
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._gpu, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu, self._instance, sample)
        self._sampled_s = time.monotonic()

    def close(self) -> None:
        """Free the samples, while NVML is open. May be repeated."""
        samples, self._samples = self._samples, []
        for one in samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(one)
