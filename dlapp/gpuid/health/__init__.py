"""How the devices of this machine are, by NVML."""
