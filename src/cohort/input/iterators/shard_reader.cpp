// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/shard_reader.h"

#include "cohort/core/error.h"
#include "cohort/data/element.h"

namespace cohort::input {

void ShardReader::set(std::vector<ShardPosition> positions, std::vector<Fields> leading,
                      std::size_t turn) {
  leading_.assign(std::make_move_iterator(leading.begin()), std::make_move_iterator(leading.end()));
  turn_ = positions.empty() ? 0 : turn % positions.size();
  shards_.clear();
  for (ShardPosition& position : positions) {
    Shard& shard = shards_.emplace_back();
    shard.source = open_(position.num, position.index);
    if (!position.state.empty()) {
      COHORT_CHECK(position.pipeline == shard.source->pipeline(), ErrorCode::invalid_argument,
                   "[input.restore] expected a position in the pipeline '",
                   shard.source->pipeline(), "', got one in '", position.pipeline,
                   "'; build the pipeline as when it was saved");
      ByteReader reader(position.state, "position of a pipeline");
      shard.source->restore(reader);
      reader.expect_end();
    }
    shard.start = std::move(position);
    shard.start.state.clear();
  }
}

std::vector<ShardPosition> ShardReader::positions() const {
  std::vector<ShardPosition> positions;
  for (const Shard& shard : shards_) {
    ShardPosition& position = positions.emplace_back(shard.start);
    ByteWriter writer;
    shard.source->save(writer);
    position.state = writer.take();
    position.pipeline = shard.source->pipeline();
  }
  return positions;
}

// An error counts as an element, so that all workers that share a shard count alike.
bool ShardReader::Shard::draw(Fields& fields) {
  try {
    if (!source->next(fields)) return false;
  } catch (...) {
    ++start.drawn;
    throw;
  }
  ++start.drawn;
  return true;
}

bool ShardReader::Shard::next(Fields& fields) {
  if (start.subshards.empty()) return draw(fields);
  while (true) {
    bool has_element = false;
    std::exception_ptr error;
    try {
      has_element = draw(fields);
    } catch (...) {
      error = std::current_exception();
    }
    if (!error && !has_element) return false;
    bool is_own = true;
    for (ModuloShard& subshard : start.subshards) {
      is_own = subshard.count++ % static_cast<std::uint64_t>(subshard.num) ==
               static_cast<std::uint64_t>(subshard.index);
      if (!is_own) break;
    }
    if (error) std::rethrow_exception(error);
    if (is_own) return true;
  }
}

bool ShardReader::next(Fields& fields) {
  if (!leading_.empty()) {
    fields = std::move(leading_.front());
    leading_.pop_front();
    return true;
  }
  for (std::size_t tried = 0; tried < shards_.size(); ++tried) {
    Shard& shard = shards_[turn_];
    if (!shard.has_ended && shard.next(fields)) {
      turn_ = (turn_ + 1) % shards_.size();
      return true;
    }
    shard.has_ended = true;
    turn_ = (turn_ + 1) % shards_.size();
  }
  return false;
}

}  // namespace cohort::input
