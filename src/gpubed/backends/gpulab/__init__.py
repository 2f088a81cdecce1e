"""GPULab: a testbed that runs jobs in containers and lends no nodes."""
