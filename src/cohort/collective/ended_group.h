// SPDX-License-Identifier: Apache-2.0
// Lets a group of processes notice its end before a call of this member finds out.
#pragma once

namespace cohort::collective {

// The groups of backends that have Links implement it, too. Not thread-safe.
class EndedGroup {
 public:
  virtual ~EndedGroup() = default;
  // If others have ended the group because of this member, calls Links::missed() with its own rank.
  virtual void look_for_end() = 0;
};

}  // namespace cohort::collective
