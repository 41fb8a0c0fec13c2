"""A real Slurm of several nodes on one machine, for tests: each node is a slurmd with its own network, host name and
boot id, by which samebits tells machines apart.

By hand, as root:

    python -m tests.slurm.cluster up FOLDER [--nodes N] [--no-accounting]
    srun -N 2 hostname
    python -m tests.slurm.cluster down FOLDER

The machine itself is controller and submit host, at 10.88.0.254; node nK is at 10.88.0.K. Slurm's own default paths
are used (symlinks in /etc/slurm), because whoever starts a job step may drop SLURM_CONF. Hence one cluster at a time:
a second one waits for the first to stop, and pytest waits for one that was started by hand: `down` first.

What it does not do: cgroups (memory is polled once a second, cores are counted and not bound), GPUs, file systems of
a node's own (every node sees the machine's), authentication between users (all is root's).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

RUN = Path("/run/samebits-slurm")
"""Fixed, not in the cluster's folder: the next start finds what a killed run left, and socket paths stay short."""
CONFIGURATION = Path("/etc/slurm")
BRIDGE = "samebits0"
NAMESPACE = "samebits-n"
VETH = "samebits-v"
HOSTS = Path("/etc/hosts")
HOSTS_MARK = "# samebits-slurm"
PARALLEL_RUN_SECONDS = 600

PROGRAMS = (
    *("slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "sinfo", "munged", "ip", "nsenter", "unshare"),
    *("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db", "my_print_defaults"),
)


class ClusterError(RuntimeError):
    """Something of the cluster did not come up, did not end, or refused a command."""


@dataclass(frozen=True)
class Job:
    """A job as Slurm tells it; `state` in capitals (`RUNNING`), `nodes` as Slurm abbreviates them (`n[1-2]`).

    name, state and nodes are empty where Slurm has forgotten all but the id.
    """

    id: str
    name: str
    state: str
    nodes: str


@functools.cache
def missing() -> str | None:
    """Why this machine cannot hold a cluster; None when it can."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    for program in PROGRAMS:
        if shutil.which(program, path=_environment()["PATH"]) is None:
            return f"a Slurm cluster needs {program}: .ci/run lists the packages"
    if _foreign_configuration():
        return f"{CONFIGURATION}/slurm.conf is of a Slurm that is not the tests'"
    probe = f"samebits-probe-{os.getpid()}"
    try:
        call("ip", "netns", "add", probe)
        call("ip", "netns", "del", probe)
    except ClusterError as error:
        return f"a Slurm cluster needs network namespaces: {error}"
    return None


class Cluster:
    """Starts with `with` or `start`, ends with `stop`, at the latest when this process ends."""

    def __init__(self, folder: Path, nodes: int = 4, cpus: int = 16, accounting: bool = True) -> None:
        self.folder = folder.absolute()
        self.nodes = tuple(f"n{k}" for k in range(1, nodes + 1))
        self.cpus = cpus
        self.accounting = accounting
        self._lock: int | None = None

    @classmethod
    def attach(cls, folder: Path) -> Cluster:
        """The running cluster of this folder, whoever started it. Raises ClusterError where it is not running."""
        running = _record()
        if running is None or running.folder != str(folder.absolute()):
            raise ClusterError(f"{folder}: no cluster runs there; running: {running and running.folder}")
        return cls(folder, running.nodes, running.cpus, running.accounting)

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Waits for another cluster on this machine to stop, clears what a killed run left, and starts."""
        if reason := missing():
            raise ClusterError(reason)
        self._lock = _locked()
        _clear()
        owner = os.getpid()
        self._at_exit = lambda: self.stop() if os.getpid() == owner else None
        atexit.register(self._at_exit)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        _write_record(_Record(str(self.folder), len(self.nodes), self.cpus, self.accounting))
        self._write_configuration()
        _lay_network(self.nodes)
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self.start_controller("-c")
        for node in self.nodes:
            self._start_node(node)
        self.idle()

    def stop(self) -> None:
        """Ends every process and undoes every change to the machine. The folder stays, with its logs."""
        _clear()
        if self._lock is not None:
            atexit.unregister(self._at_exit)
            os.close(self._lock)
            self._lock = None

    def detach(self) -> None:
        """Lets the cluster outlive this process: a process of its own holds the machine's lock from now on."""
        if self._lock is None:
            raise ClusterError(f"{self.folder}: not started by this process, so there is nothing to detach")
        self._spawn("keeper", "sleep", "infinity", keep=self._lock)
        atexit.unregister(self._at_exit)
        os.close(self._lock)
        self._lock = None

    # What tests ask and do.

    def command(self, *argv: str, timeout: float = 60) -> str:
        """What a command on the submit host prints. Raises ClusterError, with its stderr, when it fails or hangs."""
        return call(*argv, timeout=timeout)

    def jobs(self) -> list[Job]:
        """Jobs that wait, run or end just now."""
        return self._queue()

    def history(self) -> list[Job]:
        """Every job ever submitted to this cluster, once however often it was requeued, in the order of submission."""
        found = self._accounted() if self.accounting else self._logged()
        # The controller forgets after MinJobAge, but accounting hears of a job a moment late.
        known = {job.id: job for job in (*found, *self._queue("-t", "all"))}
        return sorted(known.values(), key=lambda job: int(re.split(r"\D", job.id)[0]))

    def _accounted(self) -> list[Job]:
        text = self.command("sacct", "-XnP", "-S", "2000-01-01", "-o", "jobid,state,nodelist,jobname")
        return [_job(line) for line in text.splitlines()]

    def _logged(self) -> list[Job]:
        log = (self.folder / "log/slurmctld.log").read_text()
        ids = re.findall(r"_slurm_rpc_(?:submit_batch_job|allocate_resources):? JobId=(\d+)", log)
        return [Job(id, "", "", "") for id in ids]

    def processes(self) -> list[int]:
        """Processes of jobs on all nodes, those that escaped their job step included."""
        return [pid for node in self.nodes for pid in _inside(node) if _name(pid) not in ("slurmd", "slurmstepd")]

    def idle(self, seconds: float = 60) -> None:
        """Waits until no job is left and every node is idle."""
        self._until("all nodes idle", lambda: not self.jobs() and set(self._states()) == {"idle"}, seconds, "slurmctld")

    def stop_controller(self) -> None:
        """Ends slurmctld as an administrator would: it saves its state. Jobs run on."""
        _end("slurmctld", signal.SIGTERM)

    def start_controller(self, *options: str) -> None:
        """Starts slurmctld from its saved state, and waits until it answers."""
        self._spawn("slurmctld", "slurmctld", "-D", *options)
        self._until("controller", lambda: "is UP" in call("scontrol", "ping"), 60, "slurmctld")

    def restart_controller(self, seconds_down: float = 0) -> None:
        """Stops slurmctld, and starts it again after a while."""
        self.stop_controller()
        time.sleep(seconds_down)
        self.start_controller()

    def fail_node(self, node: str) -> None:
        """Ends a node at once, as a power cut would: its slurmd, its job steps, their processes."""
        _empty(node)

    def restore_node(self, node: str) -> None:
        """Starts a failed node again, and waits until it takes jobs."""
        self._start_node(node)
        self._until(f"{node} up again", lambda: self._resumed(node), 60, f"slurmd.{node}")

    def _resumed(self, node: str) -> bool:
        (state,) = self._states("-n", node)
        if state.startswith("down"):
            self.command("scontrol", "update", f"nodename={node}", "state=resume")
        return state in ("idle", "mixed", "allocated")

    def _states(self, *selection: str) -> list[str]:
        """States of the nodes; a star at the end: does not answer."""
        return self.command("sinfo", "-hN", "-p", "main", "-o", "%T", *selection).split()

    def _queue(self, *selection: str) -> list[Job]:
        text = self.command("squeue", "-h", "-S", "i", "-o", "%i|%T|%N|%j", *selection)
        return [_job(line) for line in text.splitlines()]

    # How it comes up.

    def _write_configuration(self) -> None:
        for part in ("state", "spool", "log", "mysql"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
            (self.folder / part).mkdir(parents=True)
        CONFIGURATION.mkdir(exist_ok=True)
        for name, text in self._configuration().items():
            path = self.folder / name
            path.touch(mode=0o600)
            path.write_text(text)
            link = CONFIGURATION / name
            link.unlink(missing_ok=True)
            link.symlink_to(path)

    def _configuration(self) -> dict[str, str]:
        files = {"slurm.conf": slurm_conf(self)}
        return {**files, "slurmdbd.conf": slurmdbd_conf(self.folder)} if self.accounting else files

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"key-file": key, "log-file": self.folder / "log/munge.log"}
        files |= {what: RUN / f"munge.{what}" for what in ("socket", "pid-file", "seed-file")}
        self._spawn("munged", "munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items()))
        self._until("munge", (RUN / "munge.socket").exists, 20, "munged")

    def _start_accounting(self) -> None:
        common = ("--no-defaults", "--user=root", f"--datadir={self.folder}/mysql")
        call("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db", timeout=120)
        quick = ("--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=64M", "--innodb-lock-wait-timeout=900")
        self._spawn("mariadbd", "mariadbd", *common, f"--socket={RUN}/mysql.socket", "--skip-networking", *quick)
        self._until("database", (RUN / "mysql.socket").exists, 60, "mariadbd")
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self._until("accounting", lambda: call("sacctmgr", "-n", "show", "cluster") == "", 60, "slurmdbd")
        for line in ASSOCIATIONS:
            call("sacctmgr", "-i", *line.split())

    def _start_node(self, node: str) -> None:
        enter = ("nsenter", f"--net=/run/netns/{_namespace(node)}", "unshare", "--uts", "--mount")
        boot = self.folder / f"boot-{node}"
        boot.write_text(f"{uuid.uuid4()}\n")
        become = f"hostname {node} && mount --bind {shlex.quote(str(boot))} /proc/sys/kernel/random/boot_id"
        self._spawn(f"slurmd.{node}", *enter, "sh", "-c", f"{become} && exec slurmd -D -N {node}")

    def _spawn(self, name: str, *argv: str, keep: int | None = None) -> None:
        _spawn(name, argv, self.folder / "log" / f"{name}.err", keep)

    def _until(self, what: str, ready: Callable[[], object], seconds: float, daemon: str) -> None:
        until(what, ready, seconds, self.folder / "log" / f"{daemon}.err")


# Configuration.

ASSOCIATIONS = (
    "add cluster samebits",
    "add qos short,long",
    "add account lab",
    "add user root account=lab defaultaccount=lab qos=normal,short defaultqos=normal",
)
"""root may use account `lab`, and qos `normal` and `short`; `long` exists and is refused."""


def slurm_conf(cluster: Cluster) -> str:
    """Everything quick: tests wait for each of these times."""
    folder, cpus = cluster.folder, cluster.cpus
    nodes = "".join(
        f"NodeName={node} NodeAddr={_address(node)} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} RealMemory=8000\n"
        for node in cluster.nodes
    )
    return f"""\
ClusterName=samebits
SlurmctldHost={socket.gethostname().partition(".")[0]}(10.88.0.254)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credentials of its former run have expired: 120 s, were they the default.
AuthInfo=socket={RUN}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={RUN}/slurmctld.pid
SlurmdPidFile={RUN}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
MailProg=/bin/true
MpiDefault=none
# More cpus and memory than the machine has; no cgroups.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=3500
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1,sched_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=3
SlurmdTimeout=10
MessageTimeout=5
UnkillableStepTimeout=20
MinJobAge=60
{_ACCOUNTING if cluster.accounting else ""}{nodes}\
PartitionName=DEFAULT Nodes=ALL DefaultTime=10 MaxTime=INFINITE State=UP
PartitionName=main Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE
"""


_ACCOUNTING = f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=10.88.0.254
AccountingStoragePort=16819
# For munge that is the path of its socket.
AccountingStoragePass={RUN}/munge.socket
AccountingStorageEnforce=associations,limits,qos
"""


def slurmdbd_conf(folder: Path) -> str:
    """StorageHost is localhost for the database's socket, which slurmdbd finds through MYSQL_UNIX_PORT."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={RUN}/munge.socket
DbdHost=localhost
DbdAddr=10.88.0.254
DbdPort=16819
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={RUN}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def _foreign_configuration() -> bool:
    path = CONFIGURATION / "slurm.conf"
    return path.exists() and "ClusterName=samebits\n" not in path.read_text()


# Commands and their time limits.


def call(*argv: str, timeout: float = 60, text: str | None = None) -> str:
    """Runs a command in a session of its own, so that a time limit ends all of it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=_environment(), start_new_session=True
    )
    try:
        output, errors = process.communicate(text, timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise ClusterError(f"{shlex.join(argv)}: not done within {timeout} s: {errors.strip()}") from None
    if process.returncode != 0:
        raise ClusterError(f"{shlex.join(argv)}: exit {process.returncode}: {errors.strip() or output.strip()}")
    return output


def until(what: str, ready: Callable[[], object], seconds: float, log: Path | None = None) -> None:
    """Waits for a true answer; a ClusterError of `ready` is a no. Quotes the log's end where it never comes."""
    end = time.monotonic() + seconds
    refusal = ""
    while time.monotonic() < end:
        try:
            if ready():
                return
        except ClusterError as error:
            refusal = f"\n{error}"
        time.sleep(0.1)
    lines = log.read_text(errors="replace").splitlines()[-15:] if log and log.exists() else []
    quoted = "".join(f"\n  {line}" for line in lines)
    raise ClusterError(f"{what}: not within {seconds:g} s{refusal}" + (f"\n{log} ends:{quoted}" if log else ""))


def _environment() -> dict[str, str]:
    """Nothing of a Slurm job around us; HOME and USER, which ch-run wants; the paths of administrators' programs."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
    ours["PATH"] = f"{ours.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"HOME": "/root", "USER": "root", **ours}


def _job(line: str) -> Job:
    id, state, nodes, name = line.split("|", 3)
    return Job(id, name, state.partition(" ")[0], "" if nodes == "None assigned" else nodes)


# Processes: known by process id and time of start, so that a later process of the same number is safe.


def _spawn(name: str, argv: tuple[str, ...], log: Path, keep: int | None) -> None:
    """Starts a daemon that outlives us and holds none of our files but `keep`."""
    write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), write, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if keep is not None:
        files.append((os.POSIX_SPAWN_DUP2, keep, 3))
    environment = {**_environment(), "MYSQL_UNIX_PORT": f"{RUN}/mysql.socket"}
    pid = os.posix_spawnp(argv[0], argv, environment, file_actions=files, setsid=True)
    (RUN / "pid" / name).write_text(f"{pid} {started(pid)}")


def _end(name: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Ends a daemon and waits until it is gone."""
    record = RUN / "pid" / name
    if not record.exists():
        return
    pid, ticks = record.read_text().split()
    if started(int(pid)) == ticks:
        os.kill(int(pid), how)
        until(f"{name} gone", lambda: started(int(pid)) != ticks, 30)
    record.unlink()


def started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None when it has ended, even if its parent has yet to notice."""
    child = False
    with contextlib.suppress(ChildProcessError):
        child = os.waitpid(pid, os.WNOHANG) == (0, 0)  # one of ours has ended when we have noticed
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A zombie may have threads that still end, and hold files.
        ended = fields[0] == "Z" and not child and int(fields[17]) <= 1
        return None if ended else fields[19]
    return None


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


# Network: a node is a namespace with one link to the bridge.


def _address(node: str) -> str:
    return f"10.88.0.{node[1:]}"


def _namespace(node: str) -> str:
    return NAMESPACE + node[1:]


def _lay_network(nodes: tuple[str, ...]) -> None:
    bridge = f"link add {BRIDGE} type bridge\naddr add 10.88.0.254/24 dev {BRIDGE}\nlink set {BRIDGE} up\n"
    call("ip", "-batch", "-", text=bridge)
    for node in nodes:
        namespace, veth = _namespace(node), VETH + node[1:]
        link = f"link add {veth} type veth peer name eth0 netns {namespace}\n"
        call("ip", "-batch", "-", text=f"netns add {namespace}\n{link}link set {veth} master {BRIDGE} up\n")
        inner = f"link set lo up\naddr add {_address(node)}/24 dev eth0\nlink set eth0 up\n"
        call("ip", "-n", namespace, "-batch", "-", text=inner)
    with HOSTS.open("a") as file:
        file.writelines(f"{_address(node)} {node} {HOSTS_MARK}\n" for node in nodes)


def _clear_network() -> None:
    for namespace in _namespaces():
        _empty(f"n{namespace.removeprefix(NAMESPACE)}")
        call("ip", "netns", "del", namespace)
    # A namespace takes its links along, but some time later.
    for link in Path("/sys/class/net").iterdir():
        if link.name == BRIDGE or link.name.startswith(VETH):
            with contextlib.suppress(ClusterError):
                call("ip", "link", "del", link.name)
    lines = HOSTS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.rstrip().endswith(HOSTS_MARK)]
    if kept != lines:
        HOSTS.write_text("".join(kept))  # in place: container engines mount this file


def _namespaces() -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"{NAMESPACE}*")]


def _inside(node: str) -> Iterator[int]:
    """Processes on a node."""
    place = Path("/run/netns") / _namespace(node)
    wanted = place.stat().st_ino if place.exists() else None
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "ns/net").stat().st_ino == wanted:
                yield int(folder.name)


def _empty(node: str) -> None:
    """Kills everything on a node, again and again while something there starts another."""

    def nobody() -> bool:
        there = list(_inside(node))
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not there

    until(f"{node} without processes", nobody, 30)
    _end(f"slurmd.{node}")


# What is on the machine.


@dataclass(frozen=True)
class _Record:
    folder: str
    nodes: int
    cpus: int
    accounting: bool


def _write_record(record: _Record) -> None:
    (RUN / "pid").mkdir(parents=True, exist_ok=True)
    (RUN / "cluster.json").write_text(json.dumps(asdict(record)))


def _record() -> _Record | None:
    path = RUN / "cluster.json"
    return _Record(**json.loads(path.read_text())) if path.exists() else None


def _locked() -> int:
    """A file descriptor that holds the machine's lock: it ends with this process, however that ends."""
    RUN.mkdir(mode=0o755, exist_ok=True)
    lock = os.open(RUN / "lock", os.O_RDWR | os.O_CREAT, 0o600)

    def taken() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    try:
        until("another cluster's end", taken, PARALLEL_RUN_SECONDS)
    except ClusterError as error:
        os.close(lock)
        running = _record()
        folder = running.folder if running else "FOLDER"
        way_out = f"one cluster at a time; to end the other: python -m tests.slurm.cluster down {folder}"
        raise ClusterError(f"{error}\n{way_out}") from None
    return lock


def _clear() -> None:
    """Removes the cluster, or what is left of it. The lock's keeper goes last: then the next one may come."""
    _clear_network()
    for record in (RUN / "pid").glob("*"):
        if record.name != "keeper":
            _end(record.name)
    if not _foreign_configuration():
        for name in ("slurm.conf", "slurmdbd.conf"):
            (CONFIGURATION / name).unlink(missing_ok=True)
    for path in RUN.glob("*"):
        if path.name not in ("lock", "pid"):
            path.unlink()
    _end("keeper")


def main(arguments: list[str]) -> None:
    """`up` and `down`, for people."""
    parser = argparse.ArgumentParser(description="a Slurm cluster of several nodes on this machine")
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--no-accounting", action="store_true")
    options = parser.parse_args(arguments)
    if options.verb == "down":
        Cluster.attach(options.folder).stop()
    else:
        cluster = Cluster(options.folder, options.nodes, accounting=not options.no_accounting)
        cluster.start()
        cluster.detach()
        print(cluster.command("sinfo"), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
