// SPDX-License-Identifier: Apache-2.0
// How the members of a group of processes reach each other: sockets between each two of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::collective {

// Identifies a split: the numbers of the splits from the group of all workers down to it. Empty for
// that group itself.
using SplitPath = std::vector<std::uint64_t>;

// Thread-safe.
class Links {
 public:
  virtual ~Links() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& member_name(int rank) const = 0;
  // Equal for two members if they run on one host, where they can open each other's files in /proc.
  virtual const std::string& host(int rank) const = 0;
  // The process's number on its host.
  virtual std::int64_t process(int rank) const = 0;
  // Opens connections for the group of this path: `lanes` stream sockets to each other member,
  // which are not blocking. The one to member r in lane l is at [r * lanes + l]; those to this
  // member itself are empty. Returns when the other members have opened theirs. All members must
  // pass the same number of lanes. Throws deadline_exceeded, naming the members that have not;
  // unavailable, naming a member whose process has ended; aborted after the group has been ended.
  virtual std::vector<FileDescriptor> open(const SplitPath& path, int lanes, Deadline deadline) = 0;
  // A member did not answer in time, or its connection broke: the next formation does not wait for
  // it. If it is this member itself, others have said so about it: it must not go on without them.
  virtual void missed(int rank, std::string_view why) = 0;
};

// Lets a group of processes notice its end before a call of this member finds out. The groups of
// backends that have Links implement it, too. Not thread-safe.
class EndedGroup {
 public:
  virtual ~EndedGroup() = default;
  // If others have ended the group because of this member, calls Links::missed() with its own rank.
  virtual void look_for_end() = 0;
};

}  // namespace cohort::collective
