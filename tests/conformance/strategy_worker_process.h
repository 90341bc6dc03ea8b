// SPDX-License-Identifier: Apache-2.0
// One worker of a strategy case, as a process that the runner has started with its TF_CONFIG
// (strategy_workers.cpp). They exchange lines:
//
//   runner → worker (a socket)   {"case": …, "worker": index, "count": …, "backend": …}
//   worker → runner (stdout)     "ready"
//   runner → worker              begin        when all workers are ready
//   worker → runner              0, 1, …      a step begins
//   worker → runner              [status, text]
//   runner → worker              end of file  when all workers have said so: the worker ends
#pragma once

namespace cohort::conformance::strategy {

// With which a worker ends whose case lets it die.
inline constexpr int kExitCodeOfDie = 93;

// Runs the case that comes through `socket`. Returns the exit code of the process.
int work_as_process(int socket);

}  // namespace cohort::conformance::strategy
