"""Health of the devices of this machine, by NVML."""
