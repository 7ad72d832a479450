#!/bin/bash
# Start a Slurm of one node in $1, submit $2/run.sbatch, requeue it once, and wait for its end.
# The caller has put this script into namespaces of its own: `ray stop` ends every Ray that it sees.
set -euo pipefail
place=$1 job_folder=$2
host=$(hostname -s) address=10.99.0.1
ip link set lo up
ip link add inside type veth peer name outside  # Slurm resolves no name with a loopback only
ip address add "$address/24" dev inside
ip link set inside up
ip link set outside up
ip route add default via 10.99.0.2
mkdir -p "$place"/{state,spool,munge}
chmod 755 "$place"
chmod 700 "$place/munge"
dd if=/dev/urandom of="$place/munge/key" bs=1 count=1024 status=none
chmod 400 "$place/munge/key"
munged --force --key-file="$place/munge/key" --socket="$place/munge/socket" \
    --pid-file="$place/munge/pid" --log-file="$place/munge/log" --seed-file="$place/munge/seed"
cat > "$place/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$host($address)
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
KillWait=10
ReturnToService=2
NodeName=$host NodeAddr=$address CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$place/slurm.conf
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for attempt in $(seq 60); do
    sinfo --noheader --format=%T 2>/dev/null | grep -q idle && break
    [ "$attempt" -lt 60 ] || { tail "$place"/*.log; exit 1; }
    sleep 0.5
done
cd "$job_folder"
number=$(sbatch --parsable run.sbatch)
merged() { grep -qs '"merges": *[1-9]' runs/*/metrics.jsonl; }
state() { squeue --noheader --jobs="$number" --format=%T 2>/dev/null || true; }
until merged; do
    [ -n "$(state)" ] || { echo "the job has ended before its first merge"; exit 1; }
    sleep 0.5
done
scontrol requeue "$number"
while [ -n "$(state)" ]; do sleep 1; done
scontrol show job "$number" | grep -E 'JobState|Restarts|ExitCode'
