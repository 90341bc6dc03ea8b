#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of examples/deploy can be read by what they are for, and agree with Cohort."""

import configparser
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples/deploy"


def text(name):
    return (FOLDER / name).read_text()


def run_script(script, arguments, **environment):
    """The words with which a script calls mpirun, torchrun or srun, each call a line."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("mpirun", "torchrun", "srun"):
            program = pathlib.Path(folder, name)
            program.write_text('#!/bin/sh\necho "$(basename "$0")" "$@"\n')
            program.chmod(0o755)
        variables = {"PATH": folder + os.pathsep + os.environ["PATH"], **environment}
        return subprocess.run(["sh", FOLDER / script, *arguments], env=variables, check=True, text=True,
                              capture_output=True, timeout=60).stdout.splitlines()


class Folder(unittest.TestCase):
    def test_readme_has_each_file(self):
        named = set(re.findall(r"\]\(([A-Za-z@.-]+)\)", text("README.md")))
        self.assertEqual({file.name for file in FOLDER.iterdir()} - {"README.md"}, named)


class Scripts(unittest.TestCase):
    def test_are_shell(self):
        for name in ("slurm.sbatch", "mpirun.sh", "torchrun.sh"):
            subprocess.run(["sh", "-n", FOLDER / name], check=True, timeout=60)

    def test_mpirun_passes_on_what_is_set(self):
        self.assertEqual(run_script("mpirun.sh", ["4", "train", "a b"]), ["mpirun -n 4 -x COHORT_END_WHEN_UNUSED train a b"])
        self.assertEqual(run_script("mpirun.sh", ["2", "train"], HOSTS="a:1,b:1", COHORT_TASKS="ps=1,worker=1"),
                         ["mpirun -n 2 --host a:1,b:1 -x COHORT_END_WHEN_UNUSED -x COHORT_TASKS train"])

    def test_torchrun_starts_programs_that_are_not_python(self):
        lines = run_script("torchrun.sh", ["4", "train"], NODES="2", MASTER="h0:29400")
        self.assertEqual(lines, ["torchrun --no_python --nnodes 2 --nproc_per_node 4 --rdzv_backend c10d "
                                 "--rdzv_endpoint h0:29400 --rdzv_id cohort train"])

    def test_slurm_checks_first(self):
        lines = run_script("slurm.sbatch", ["train"], SLURM_JOB_ID="7")
        self.assertEqual(lines, ["srun cohort check", "srun --kill-on-bad-exit=0 train"])
        self.assertIn("#SBATCH --distribution=block", text("slurm.sbatch"))

    def test_jobs_of_slurm_have_ports_of_their_own(self):
        """Regression: two jobs in a row on one host shared a port."""
        tasks = int(re.search(r"--ntasks-per-node=(\d+)", text("slurm.sbatch")).group(1))
        line = re.search(r"^export COHORT_PORT_BASE=.*", text("slurm.sbatch"), re.M).group(0)
        script = f"for SLURM_JOB_ID in $(seq 1000); do {line}; echo $COHORT_PORT_BASE; done"
        bases = [int(base) for base in subprocess.run(["sh", "-c", script], check=True, text=True, capture_output=True,
                                                      timeout=60).stdout.split()]
        for one, next_one in zip(bases, bases[1:]):
            self.assertGreaterEqual(abs(one - next_one), tasks)
        self.assertLessEqual(max(bases) + tasks, 32768)  # where Linux begins to give ports to connections


NAME, COUNT, SWITCH, LIST, MAP = str, int, bool, list, dict
CONTAINER = {"name": NAME, "image": NAME, "command": LIST, "ports": [{"name": NAME, "containerPort": COUNT}]}
POD = {"spec": {"containers": [CONTAINER]}}
REPLICAS = {"replicas": COUNT, "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"), "template": POD}
# The public schemas of these kinds require this of the parts that the files have: a type, one of some values, or
# the same of each item of a list.
SHAPES = {
    "Service": {"apiVersion": ("v1",), "metadata": {"name": NAME},
                "spec": {"clusterIP": NAME, "publishNotReadyAddresses": SWITCH, "selector": MAP,
                         "ports": [{"name": NAME, "port": COUNT}]}},
    "StatefulSet": {"apiVersion": ("apps/v1",), "metadata": {"name": NAME},
                    "spec": {"serviceName": NAME, "replicas": COUNT, "selector": {"matchLabels": MAP},
                             "podManagementPolicy": ("Parallel", "OrderedReady"),
                             "template": {"metadata": {"labels": MAP}, **POD}}},
    "TFJob": {"apiVersion": ("kubeflow.org/v1",), "metadata": {"name": NAME},
              "spec": {"enableDynamicWorker": SWITCH,
                       "runPolicy": {"cleanPodPolicy": ("All", "Running", "None"), "backoffLimit": COUNT},
                       "tfReplicaSpecs": {"Chief": REPLICAS, "Worker": REPLICAS, "PS": REPLICAS}}}}


def misfits(value, shape, place=""):
    """Where a value of a manifest has not the shape; keys that the shape does not name are not looked at."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{place}: expected a map, got {value!r}"]
        return [found for key, inner in shape.items() for found in misfits(value.get(key), inner, f"{place}.{key}")]
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return [f"{place}: expected items, got {value!r}"]
        return [found for i, item in enumerate(value) for found in misfits(item, shape[0], f"{place}[{i}]")]
    is_good = value in shape if isinstance(shape, tuple) else type(value) is shape
    return [] if is_good else [f"{place}: expected {shape}, got {value!r}"]


@unittest.skipIf(yaml is None, "needs python3-yaml")
class Manifests(unittest.TestCase):
    def documents(self, name):
        return list(yaml.safe_load_all(text(name)))

    def test_have_the_shapes_of_their_kinds(self):
        for document in self.documents("kubernetes.yaml") + self.documents("tfjob.yaml"):
            self.assertEqual(misfits(document, SHAPES[document["kind"]]), [])

    def test_a_wrong_type_is_found(self):
        (job,) = self.documents("tfjob.yaml")
        job["spec"]["tfReplicaSpecs"]["PS"].update(replicas="1", restartPolicy="Sometimes")
        del job["metadata"]["name"]
        self.assertEqual(len(misfits(job, SHAPES["TFJob"])), 3)

    def test_tfjob_has_the_roles_of_cohort(self):
        (job,) = self.documents("tfjob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v1", "TFJob"))
        self.assertFalse(job["spec"]["enableDynamicWorker"])
        self.assertEqual(set(job["spec"]["tfReplicaSpecs"]), {"Chief", "Worker", "PS"})
        for replica in job["spec"]["tfReplicaSpecs"].values():
            (container,) = replica["template"]["spec"]["containers"]
            self.assertEqual(container["name"], "tensorflow")

    def test_workers_of_the_stateful_set_find_each_other(self):
        service, workers = self.documents("kubernetes.yaml")
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertEqual(workers["spec"]["serviceName"], service["metadata"]["name"])
        labels = workers["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(workers["spec"]["selector"]["matchLabels"], labels)
        self.assertEqual(service["spec"]["selector"], labels)
        (container,) = workers["spec"]["template"]["spec"]["containers"]
        count = next(each["value"] for each in container["env"] if each["name"] == "WORKERS")
        self.assertEqual(int(count), workers["spec"]["replicas"])
        script = re.sub(r"exec /usr/local/bin/train.*", 'printf %s "$TF_CONFIG"', container["command"][2])
        told = subprocess.run(["sh", "-c", script], env={"WORKERS": count, "POD": "train-1"}, check=True, text=True,
                              capture_output=True, timeout=60).stdout
        self.assertEqual(json.loads(told), {"cluster": {"worker": ["train-0.train:2222", "train-1.train:2222"]},
                                            "task": {"type": "worker", "index": 1}})


class Units(unittest.TestCase):
    def test_start_again_as_exit_codes_ask(self):
        for name, key, codes in [("cohort-server@.service", "RestartPreventExitStatus", "64"),
                                 ("cohort-chief.service", "RestartForceExitStatus", "69 75")]:
            unit = configparser.ConfigParser(interpolation=None, strict=True)
            unit.optionxform = str
            unit.read_string(text(name))
            self.assertEqual(unit["Service"][key], codes)
            self.assertTrue(unit["Service"]["ExecStart"].startswith("/"))


    @unittest.skipUnless(shutil.which("systemd-analyze"), "needs systemd")
    def test_systemd_finds_nothing_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            units = [pathlib.Path(folder, name) for name in ("cohort-server@.service", "cohort-chief.service")]
            for unit in units:  # with a program that is there
                unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text(unit.name), flags=re.M))
            found = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], text=True, capture_output=True,
                                   timeout=60)
        self.assertEqual((found.returncode, found.stderr), (0, ""))


class Container(unittest.TestCase):
    # These are headers alone, or libraries that other packages bring.
    WITHOUT_LIBRARY = {"libcli11", "nlohmann-json3", "libgrpc", "libssl", "zlib1g"}

    def stages(self):
        """The packages of each stage."""
        return [stage.split("&&")[0].replace("\\", " ").split()
                for stage in text("Containerfile").split("--no-install-recommends")[1:]]

    def test_builds_with_the_packages_of_setup(self):
        script = (ROOT / "dev").read_text()
        wanted = re.search(r"BUILD_PACKAGES=\((.*?)\)", script, re.S).group(1)
        for package in self.stages()[0]:
            if package.endswith("-dev"):
                self.assertIn(package, wanted)

    def test_runs_with_each_library_that_it_was_built_with(self):
        build, run = self.stages()
        libraries = {package.removesuffix("-dev") for package in build if package.endswith("-dev")}
        for library in libraries - self.WITHOUT_LIBRARY:
            self.assertTrue(any(package.startswith(library) for package in run), library)


if __name__ == "__main__":
    unittest.main()
