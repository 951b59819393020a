"""spark-submit as a command: the program, its arguments, its environment, and what is refused. Nothing secret is among them.

Drivers that are clients of a Spark Connect server are Python alone; the server that they share is started by spark-submit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.validation import check_session_zone
from airflow_logio.dataflow.windows.zones import SESSION_ZONE, UTC_ITSELF
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch.given_files import PROPERTY_OF, check_given_files
from airflow_logio.launch.spark_settings import (
    APPLICATION_NAME,
    DRIVER_MEMORY,
    JVM_OPTIONS,
    TOKEN_VARIABLE,
    SparkSettings,
    check_deploy_mode,
    check_session_conf,
    is_address,
    is_client,
    is_on_cluster,
    split_token,
)
from airflow_logio.spark.determinism import check_shuffle, check_version, version_number
from airflow_logio.spark.session_safety import GUARDED_SINCE

TICKET_CACHE = "KRB5CCNAME"
INHERITED = (
    "HADOOP_CONF_DIR",
    "HOME",
    "JAVA_HOME",
    TICKET_CACHE,
    "KRB5_CONFIG",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "TMPDIR",
    "TZ",
    "USER",
    "YARN_CONF_DIR",
)
"""The environment of a driver: these variables, and those that a launch adds. None are Airflow's, whose settings hold
secrets."""
_NO_LOCALE = ("C", "POSIX")
_OF_SERVERS = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "JDK_", "JAVA_", "PYTHON", "MALLOC_")
"""How names of variables begin that a shared server gets from those of a launch."""
JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
"""Options of every JVM that is started by ``java``; what the command line says decides against them."""
SPARK_SUBMIT = "spark-submit"
JAVA_VERSIONS = (17, 21)
_NEEDED_JAVA = " or ".join(map(str, JAVA_VERSIONS))
PYSPARK, CLIENT = "pyspark", "pyspark-client"
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SPARK_CORE = re.compile(r"spark-core_[\d.]+-(?P<version>\d.*)\.jar")
OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""All groups are in one heap: its end is seen by all of them as a lost server, and blamed on none of their records."""
NO_FILE = "spark-internal"
"""What spark-submit is given for the application's file, where the class is Spark's own."""
LOCAL_MEMORY = "2g"
"""The server's heap on a local master, by default: several groups, and the executor, are in it."""
SERVER_CONF: Mapping[str, str] = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.scheduler.mode": "FAIR",
    # Clients cannot choose a pool: within the one that there is, jobs of all groups get their share.
    "spark.scheduler.allocation.file": Path(__file__).with_name("fair_pools.xml").as_uri(),
}
_OF_THE_SERVER = (
    "spark.connect.authenticate.token",
    "spark.connect.grpc.binding.address",
    "spark.connect.grpc.binding.port",
    "spark.connect.grpc.port.maxRetries",
)
"""How clients find a server that is started for them, and what it asks them for: it would be in vain, or shown."""
_NEEDED_BY_CLIENTS = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "pandas": "pandas",
}
"""Module → package that pyspark's client imports."""
_OF_CLIENTS = frozenset(
    {
        "master",
        "deploy_mode",
        "conf",
        "py_files",
        "env_vars",
        "token",
        "name",
        "verbose",
        "spark_binary",
        "principal",
        "queue",
    }
)
"""Settings that mean something with a server, or come from a connection that means nothing by them."""
_OPTIONS = (
    ("packages", "--packages"),
    ("exclude_packages", "--exclude-packages"),
    ("repositories", "--repositories"),
    ("jars", "--jars"),
    ("files", "--files"),
    ("archives", "--archives"),
    ("driver_class_path", "--driver-class-path"),
    ("driver_cores", "--driver-cores"),
    ("executor_memory", "--executor-memory"),
    ("executor_cores", "--executor-cores"),
    ("num_executors", "--num-executors"),
    ("total_executor_cores", "--total-executor-cores"),
    ("queue", "--queue"),
    ("properties_file", "--properties-file"),
    ("keytab", "--keytab"),
    ("principal", "--principal"),
    ("proxy_user", "--proxy-user"),
)


def check(settings: SparkSettings) -> None:
    """Refuse what cannot work before anything is claimed or started. Raises `ConfigurationError`."""
    if is_client(settings):
        _check_client(settings)
        check_versions()
        if not settings.connect:
            check_given_files("py_files", settings.py_files)
            return
    check_deploy_mode(settings.deploy_mode)
    if is_on_cluster(settings):  # what it needs, its manager knows (`ClusterManager.check`)
        return
    if settings.use_krb5ccache and not environment(settings).get(TICKET_CACHE):
        raise ConfigurationError(
            f"use_krb5ccache: there is no {TICKET_CACHE} in the environment of this process, so the driver would find no "
            "ticket. Set it for the workers (and for what else launches drivers), or give keytab and principal"
        )
    for argument, named in PROPERTY_OF.items():
        if given := getattr(settings, argument):
            check_given_files(argument, given)
        else:
            check_given_files(named, settings.conf.get(named))
    check_versions()
    find_spark_submit(settings.spark_binary, environment(settings))
    check_java()


def group_properties(
    settings: SparkSettings, pipeline: Pipeline, group: str, *, frames: bool = False
) -> dict[str, str]:
    """The effective Spark properties of a group; `frames` as in `SparkSettings.effective_conf`. Raises `ConfigurationError`
    for those that its driver cannot have."""
    own = pipeline.group_of(group)
    try:
        conf = properties_of(settings, own.spark, frames=frames)
        session, said = conf.get(SESSION_ZONE, UTC_ITSELF), own.spark.get(SESSION_ZONE, UTC_ITSELF)
        if session != said:  # of the launch; the pipeline's own was judged when the run began
            check_session_zone(own, pipeline.operators, session)
        return conf
    except (ConfigurationError, PipelineDefinitionError) as error:
        raise ConfigurationError(f"group {group!r} of pipeline {pipeline.name!r}: {error}") from None


def properties_of(settings: SparkSettings, own: Mapping[str, str], *, frames: bool) -> dict[str, str]:
    """The effective Spark properties of a group with properties of its `own`. Raises `ConfigurationError`, and
    `PipelineDefinitionError` for a shuffle that `frames` cannot have."""
    if frames and not is_address(settings.master) and (version := spark_version(settings)) is not None:
        check_version(version, is_served=settings.connect)
    conf = settings.effective_conf(own, frames=frames, guarded=is_guarded(settings))
    is_read_elsewhere = is_client(settings) or _is_submitted_by_http(settings)
    for argument, named in PROPERTY_OF.items():
        if not is_read_elsewhere and not getattr(settings, argument):
            check_given_files(named, conf.get(named))
    if frames and not is_address(settings.master):
        check_shuffle({**properties_of_file(file_that_is_read(settings)), **settings.conf, **conf})
    return conf


def _is_submitted_by_http(settings: SparkSettings) -> bool:
    """Whether spark-submit runs on a worker of a standalone cluster, and reads the files there."""
    return is_on_cluster(settings) and settings.master.startswith("spark://")


def spark_version(settings: SparkSettings) -> str | None:
    """The version of the Spark that spark-submit starts, by its files; None where they do not tell, or where that starts the
    driver on another machine."""
    variables, home = environment(settings), _home(settings)
    if home is None or is_on_cluster(settings):
        return None
    homes = [home, *(Path(one) for one in filter(None, [variables.get("SPARK_HOME")]))]  # a script may know another one
    found = [[_SPARK_CORE.fullmatch(jar.name) for jar in (one / "jars").glob("spark-core_*.jar")] for one in homes]
    if not all(found):
        return None
    versions = [match["version"] for jars in found for match in jars if match is not None]
    return min(versions, key=lambda one: version_number(one) or (0, 0), default=None)


def is_guarded(settings: SparkSettings) -> bool:
    """Whether that Spark is known to keep apart what a task made, and what it made when it ran again."""
    number = version_number(spark_version(settings) or "")
    return number is not None and number >= GUARDED_SINCE


def _home(settings: SparkSettings) -> Path | None:
    """The folder of the Spark that is used on this machine."""
    try:
        return Path(find_spark_submit(settings.spark_binary, environment(settings))).parent.parent
    except ConfigurationError:  # `check` says it, where something is to be started
        return None


def file_that_is_read(settings: SparkSettings) -> Path | None:
    """The file of properties that spark-submit reads on this machine: one that is named, else the site's. None: it runs
    elsewhere, or there is no Spark here."""
    variables, home = environment(settings), _home(settings)
    if home is None or _is_submitted_by_http(settings):
        return None
    site = Path(variables.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return Path(settings.properties_file or site)


def properties_of_file(path: Path | None) -> dict[str, str]:
    """As spark-submit reads them."""
    if path is None:
        return {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:  # there is none, which spark-submit says of one that is named
        return {}
    found = (re.match(r"\s*(?P<name>spark\.[^\s=:]+)\s*[\s=:]\s*(?P<value>.*?)\s*$", line) for line in lines)
    return {one["name"]: one["value"] for one in found if one is not None}


def _check_client(settings: SparkSettings) -> None:
    """Refuse what a server's client cannot have. Raises `ConfigurationError` that says where it belongs."""
    if missing := [package for module, package in _NEEDED_BY_CLIENTS.items() if not _is_found(module)]:
        raise ConfigurationError(
            f"drivers that are clients of Spark Connect need {', '.join(missing)}, which this Python lacks: "
            "pip install 'pyspark[connect]' of the version of the pyspark that is installed"
        )
    if remote := [one for one in (settings.py_files or "").split(",") if ":" in one]:
        raise ConfigurationError(
            f"py_files has {remote[0].strip()}: a driver that is a client of Spark Connect sends its tasks files of its own "
            "machine only; copy it there"
        )
    if not is_address(settings.master):
        _check_own_server(settings)
        return
    if split_token(settings.master)[1] is not None:
        raise ConfigurationError(
            "the address of the Spark Connect server has its token in it, which would be in messages: leave it out, and set "
            f"{TOKEN_VARIABLE}, or the password of the Airflow connection"
        )
    if settings.connect:
        raise ConfigurationError(
            f"master {settings.master} is a Spark Connect server already: leave connect (--connect) out, or give the master "
            "on which a server is to be started"
        )
    for one in fields(settings):
        if one.name in _OF_CLIENTS or one.default is MISSING:
            continue
        if getattr(settings, one.name) != one.default:
            raise ConfigurationError(
                f"{one.name}={getattr(settings, one.name)!r} cannot be set for the Spark Connect server {settings.master}, "
                "which has its application already: set it where the server is started"
            )
    check_session_conf(settings.conf, settings.master)


def _check_own_server(settings: SparkSettings) -> None:
    """Refuse what a server cannot have that is started for the drivers of a run."""
    if settings.keytab_content is not None:
        raise ConfigurationError("a Spark Connect server takes a keytab from a file only: give keytab, with its path")
    if own := [name for name in _OF_THE_SERVER if name in settings.conf]:
        raise ConfigurationError(
            f"{own[0]} cannot be set for the Spark Connect server that the drivers of a run share: it listens on 127.0.0.1, "
            "on a free port, and has a new token each time it starts. Leave it out, or start a server yourself and give "
            "its address (sc://host:port) as the master"
        )


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def command(
    settings: SparkSettings, conf: Mapping[str, str], name: str, bundle: Path | None, application: Path, config: Path
) -> list[str]:
    """The spark-submit command line of a driver; `bundle` is the zip file with the pipeline's code, if it is shipped.

    `name` is for an application to which nothing else gives a name.
    """
    options = _options(settings, conf, name, bundle)
    return [_binary(settings), *options, str(application), "--config", str(config)]


def shell_arguments(settings: SparkSettings, conf: Mapping[str, str], name: str, bundle: Path | None) -> str:
    """As pyspark takes them from the environment, for sessions that are made without spark-submit."""
    return shlex.join([*_options(settings, conf, name, bundle), "pyspark-shell"])


def cluster_options(
    settings: SparkSettings, conf: Mapping[str, str], name: str, *, deploy_mode: str = "cluster"
) -> list[str]:
    """The options of spark-submit for a driver that starts on a node: paths among them are the nodes', and no code of the
    pipeline is shipped. `deploy_mode`: another one, where spark-submit itself runs on the node."""
    return _options(replace(settings, deploy_mode=deploy_mode), conf, name, None)


def server_command(settings: SparkSettings) -> list[str]:
    """The command line of the Spark Connect server that drivers with these settings share; its port is not in it."""
    own = replace(settings, connect=False)
    conf = own.effective_conf({}, frames=True)
    if settings.master.startswith("local"):
        conf.setdefault(DRIVER_MEMORY, LOCAL_MEMORY)
    conf[JVM_OPTIONS] = f"{conf.get(JVM_OPTIONS, '')} {OUT_OF_MEMORY}".strip()
    conf = {**SERVER_CONF, **conf}
    options = _options(own, conf, "logio connect", None)
    return [_binary(settings), *options, "--class", SERVER_CLASS, NO_FILE]


def _binary(settings: SparkSettings) -> str:
    return find_spark_submit(settings.spark_binary, environment(settings))


def _options(settings: SparkSettings, conf: Mapping[str, str], name: str, bundle: Path | None) -> list[str]:
    arguments = ["--master", settings.master, "--deploy-mode", settings.deploy_mode]
    if settings.name or APPLICATION_NAME not in conf:
        arguments += ["--name", settings.name or name]
    # Only where it was said: an option would decide against the properties file.
    if memory := conf.get(DRIVER_MEMORY):
        arguments += ["--driver-memory", memory]
    for attribute, option in _OPTIONS:
        if value := getattr(settings, attribute):
            arguments += [option, str(value)]
    if py_files := ",".join(filter(None, (settings.py_files, str(bundle or "")))):
        arguments += ["--py-files", py_files]
    for key, value in sorted(conf.items()):
        if key != DRIVER_MEMORY:
            arguments += ["--conf", f"{key}={value}"]
    if settings.verbose:
        arguments.append("--verbose")
    return arguments


def environment(settings: SparkSettings, scratch: Path | None = None) -> dict[str, str]:
    """The minimal environment of a driver on this machine; `scratch` is where its JVM puts temporary files.

    Spark's local directories are there too, unless ``spark.local.dir`` or ``SPARK_LOCAL_DIRS`` says otherwise. A property
    would decide against the site's spark-defaults.conf, so a variable says it.
    """
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    if not settings.master.startswith("local"):
        del ours["SPARK_LOCAL_IP"]
    found = {**inherited, **_locale(inherited), **ours, **settings.env_vars}
    if scratch is not None:
        found[JAVA_OPTIONS] = f'"-Djava.io.tmpdir={scratch}" {found.get(JAVA_OPTIONS, "")}'.rstrip()
    return found


def _locale(inherited: Mapping[str, str]) -> dict[str, str]:
    """What makes a JVM read names of files as UTF-8 where there is no locale: a service of systemd, a container.

    Python does so by itself (PEP 538, 540). A JVM took each letter beyond ASCII for another one, and found no such file.
    """
    named = inherited.get("LC_ALL") or inherited.get("LANG") or _NO_LOCALE[0]
    if sys.platform == "darwin" or named not in _NO_LOCALE:
        return {}
    return dict.fromkeys(("LC_ALL", "LC_CTYPE") if inherited.get("LC_ALL") else ("LC_CTYPE",), "C.UTF-8")


def server_environment(settings: SparkSettings, scratch: Path | None = None) -> dict[str, str]:
    """As `environment`, of a server that drivers share: what Spark, Java and Python read. The rest of `env_vars` is of each
    driver alone."""
    found = environment(settings, scratch)
    return {
        name: value for name, value in found.items() if name in (*INHERITED, "LC_CTYPE") or name.startswith(_OF_SERVERS)
    }


def files_of(py_files: str | None) -> tuple[str, ...]:
    """The paths in `py_files`, absolute."""
    return tuple(str(Path(one.strip()).absolute()) for one in (py_files or "").split(",") if one.strip())


def importable(folder: Path, py_files: str) -> list[str]:
    """What belongs on the path of Python, so that it can import `py_files`: a file .py is copied into `folder` for that.

    Raises OSError.
    """
    files = files_of(py_files)
    modules = [file for file in files if file.endswith(".py")]
    if modules:
        folder.mkdir()
    for module in modules:
        shutil.copy(module, folder)
    return [*([str(folder)] if modules else []), *(file for file in files if file not in modules)]


def find_spark_submit(binary: str | None, environment: Mapping[str, str]) -> str:
    """The path of a command that is named, looked up on PATH as Airflow's Spark provider does; else that of ``SPARK_HOME``,
    of the installed pyspark, or of PATH.

    ``spark-submit`` may be missing on PATH: a worker that is started by its path has a virtual environment that is not
    there. `environment` is the driver's. Raises `ConfigurationError`.
    """
    path = environment.get("PATH", os.defpath)
    if binary is not None:
        found = shutil.which(binary, path=path)
        if found is not None:
            return os.path.abspath(found)  # the driver starts in another folder
        if binary != SPARK_SUBMIT:
            raise ConfigurationError(
                f"spark_binary={binary!r} is not an executable on this machine; it is looked up on PATH ({path})"
            )
    if home := environment.get("SPARK_HOME"):
        return _of_home(Path(home))
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(folder) / "bin" / SPARK_SUBMIT
        if candidate.is_file():  # pyspark-client has none
            return str(candidate)
    found = shutil.which(SPARK_SUBMIT, path=path)
    if found is None:
        raise ConfigurationError(
            "spark-submit was not found: install pyspark (`pip install 'airflow-logio[spark]'` beside Airflow, or else `pip "
            "install pyspark`), or set SPARK_HOME to the Spark of this machine"
        )
    return os.path.abspath(found)


def _of_home(home: Path) -> str:
    """Any other spark-submit would use that Spark, too."""
    candidate = home / "bin" / SPARK_SUBMIT
    if not candidate.is_file():
        raise ConfigurationError(f"SPARK_HOME is {home}, but there is no {candidate}; correct it, or unset it")
    return os.path.abspath(candidate)


def find_java() -> Path | None:
    """``java`` by JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:  # spark-submit looks only at JAVA_HOME
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise ConfigurationError(f"JAVA_HOME is {home}, but there is no {java}; correct it, or unset it")
        return java
    found = shutil.which("java")
    return Path(found) if found else None


def check_java() -> None:
    """Java 17 or 21, by JAVA_HOME or PATH. Raises `ConfigurationError`.

    One that was accepted is asked again when its file has changed: each recovery of a driver checks it.
    """
    java = find_java()
    if java is None:
        raise ConfigurationError(
            f"Java {_NEEDED_JAVA} is needed for Spark and was not found: install it, or set JAVA_HOME"
        )
    try:
        real = java.resolve(strict=True)
        file = real.stat()
        _accept(java, real, (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns))
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{java} does not run: {error}") from error


@lru_cache(maxsize=8)
def _accept(java: Path, _real: Path, _file: tuple[int, ...]) -> None:
    """Raises `ConfigurationError`. What is raised is not remembered, so that a mended Java is noticed wherever it is."""
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    version = re.search(r'version "(\d+)', printed)
    if version is None or int(version.group(1)) not in JAVA_VERSIONS:
        raise ConfigurationError(
            f"Spark needs Java {_NEEDED_JAVA}; {java} is {printed.splitlines()[0] if printed else 'unknown'}"
        )


def check_versions() -> None:
    """Refuse pyspark and pyspark-client of two versions, where this process finds both. Raises `ConfigurationError`."""
    spark, client = _installed(PYSPARK), _installed(CLIENT)
    if spark is None or client is None or spark == client:
        return
    # Each client was released with a pyspark of its version, and not the other way round.
    raise ConfigurationError(
        f"{PYSPARK} {spark} and {CLIENT} {client} (which Airflow's Spark provider needs) are installed here. They share "
        "their files, so that some are of the wrong version, and Spark's Python fails. Install one version of both: "
        f"pip install {PYSPARK}=={client} {CLIENT}=={client}   (or another version that both have, as your cluster needs it)"
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
