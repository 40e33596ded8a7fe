#!/bin/bash
#SBATCH --job-name=ajet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
# Ray on all nodes of the allocation, the job on the first one:  sbatch slurm.sh qwen3-4b-2nodes.yaml
# The environment, the repository and run.dir lie on a disk that every node sees.
set -euo pipefail
job=$1
port=6379
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

# Ray's nodes know each other by a token, which is the same on all of them and of this job only.
umask 077
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --block &
sleep 20
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
    srun --nodes="$others" --ntasks="$others" --exclude="$head" ray start --address="$address:$port" --block &
fi

# A second task on the first node; it waits for the others' GPUs.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" env RAY_ADDRESS="$address:$port" ajet run "$job"
