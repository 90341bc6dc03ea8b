// SPDX-License-Identifier: Apache-2.0
// The findings of `cohort check`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cohort::cli {

enum class Severity : std::uint8_t { warning, error };

// A kind of finding. Codes are stable: scripts compare them. C1xx is about the cluster, C2xx names,
// C3xx addresses and ports, C4xx versions, C5xx clocks, C6xx limits, C7xx data.
struct FindingKind {
  const char* code;
  Severity severity;
  int exit_code;       // of an error: as those of `cohort`
  const char* advice;  // one sentence
};

// All kinds, by code.
std::span<const FindingKind> finding_kinds();

struct Finding {
  const FindingKind* kind = nullptr;
  std::string task;  // the other one, "worker:1"; empty: this task or the whole cluster
  std::string text;  // what is wrong
};

// A finding of the kind with this code, which exists.
Finding finding(const char* code, std::string task, std::string text);
// 0 without errors; else that of the first error in the order of codes.
int exit_code_of(const std::vector<Finding>& findings);

}  // namespace cohort::cli
