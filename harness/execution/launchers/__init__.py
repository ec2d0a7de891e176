"""How the processes of a trial are started: on this machine, by torchrun, by Slurm."""
