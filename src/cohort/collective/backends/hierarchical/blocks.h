// SPDX-License-Identifier: Apache-2.0
// Which members add their values on their host, before hosts exchange the sums.
#pragma once

#include <vector>

#include "cohort/collective/links.h"

namespace cohort::collective::hierarchical {

// Neighbours in the order of ranks, on one host. The first of them, the leader, sends their sum to
// the leaders of the other blocks.
struct Block {
  int first = 0;  // ranks
  int last = 0;   // after the last one
  int size() const { return last - first; }
};

// Divides the balanced tree of a sum over all members into its largest subtrees that have members
// of one host only. So a sum of their sums has the bits of the whole tree. Equal on all members; if
// neighbours are on different hosts, each member is a block.
std::vector<Block> blocks_of(const Links& links);

// Whether sums of these members can be made on their hosts first. Equal on all of them.
bool is_useful(const Links& links);

}  // namespace cohort::collective::hierarchical
