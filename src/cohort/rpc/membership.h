// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job, and which of them has which variable. The coordinator decides
// both, and tells the tasks (CoordinatorSession).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::rpc {

// Identifies a task of a job, and is never given to another task of this job. A task that starts
// again keeps it, also on another host.
using MemberId = std::uint64_t;

struct Member {
  MemberId id = 0;
  std::string task;               // "ps:0"
  std::string address;            // of the control plane
  std::uint64_t incarnation = 0;  // the start that has the variables; 0: any
};

// A later epoch replaces an earlier one.
struct Membership {
  std::uint64_t epoch = 1;
  std::vector<Member> servers;
  // How many closures the worker that gets this runs at once; 0 counts as 1.
  std::uint32_t closures_at_once = 1;
};

// Rows of a variable that are on one server. A variable that is not sharded is one slice.
struct Slice {
  static constexpr std::int64_t kAllRows = -1;
  // The rows of a table are divided by their keys; `first_row` is then the number of the slice.
  static constexpr std::int64_t kRowsByKey = -2;

  std::uint64_t variable = 0;
  MemberId server = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = kAllRows;
  // The number by which the server knows these rows, if it is not that of the variable.
  std::uint64_t shard = 0;

  bool is_whole() const { return rows == kAllRows; }
  bool is_by_key() const { return rows == kRowsByKey; }
  std::uint64_t stored() const { return shard == 0 ? variable : shard; }
};

// Adds variables, each with all of its slices in the order of their rows, to those of the same
// version. The version is raised when a slice moves, not when a
// variable is added, and then the message has all slices.
struct Placement {
  std::uint64_t version = 1;
  std::vector<Slice> slices;
};

}  // namespace cohort::rpc
