// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/hierarchical/blocks.h"

#include <bit>

namespace cohort::collective::hierarchical {
namespace {

bool is_on_one_host(const Links& links, const Block& block) {
  for (int rank = block.first + 1; rank < block.last; ++rank) {
    if (links.host(rank) != links.host(block.first)) return false;
  }
  return true;
}

void divide(const Links& links, const Block& block, std::vector<Block>& blocks) {
  if (is_on_one_host(links, block)) return blocks.push_back(block);
  // As reduce_elements() divides its inputs.
  const auto left = static_cast<int>(std::bit_floor(static_cast<unsigned>(block.size() - 1)));
  divide(links, {block.first, block.first + left}, blocks);
  divide(links, {block.first + left, block.last}, blocks);
}

}  // namespace

std::vector<Block> blocks_of(const Links& links) {
  std::vector<Block> blocks;
  divide(links, {0, links.size()}, blocks);
  return blocks;
}

bool is_useful(const Links& links) {
  const std::vector<Block> blocks = blocks_of(links);
  return blocks.size() > 1 && static_cast<int>(blocks.size()) < links.size();
}

}  // namespace cohort::collective::hierarchical
