#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of examples/deploy can be read by what they are for, and agree with Cohort."""

import configparser
import json
import os
import pathlib
import re
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
        self.assertEqual(run_script("mpirun.sh", ["4", "train", "a b"]), ["mpirun -n 4 train a b"])
        self.assertEqual(run_script("mpirun.sh", ["2", "train"], HOSTS="a:1,b:1", COHORT_TASKS="ps=1,worker=1"),
                         ["mpirun -n 2 --host a:1,b:1 -x COHORT_TASKS train"])

    def test_torchrun_starts_programs_that_are_not_python(self):
        lines = run_script("torchrun.sh", ["4", "train"], NODES="2", MASTER="h0:29400")
        self.assertEqual(lines, ["torchrun --no-python --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d "
                                 "--rdzv-endpoint h0:29400 --rdzv-id cohort train"])

    def test_slurm_checks_first(self):
        lines = run_script("slurm.sbatch", ["train"], SLURM_JOB_ID="7")
        self.assertEqual(lines, ["srun cohort check", "srun --kill-on-bad-exit=0 train"])
        self.assertIn("#SBATCH --distribution=block", text("slurm.sbatch"))


@unittest.skipIf(yaml is None, "needs python3-yaml")
class Manifests(unittest.TestCase):
    def documents(self, name):
        return list(yaml.safe_load_all(text(name)))

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


class Container(unittest.TestCase):
    def test_builds_with_the_packages_of_setup(self):
        script = (ROOT / "dev").read_text()
        wanted = re.search(r"BUILD_PACKAGES=\((.*?)\)", script, re.S).group(1)
        build = text("Containerfile").split("AS build")[1].split("FROM")[0]
        for package in build.split("--no-install-recommends")[1].split("&&")[0].replace("\\", " ").split():
            if package.endswith("-dev"):
                self.assertIn(package, wanted)


if __name__ == "__main__":
    unittest.main()
