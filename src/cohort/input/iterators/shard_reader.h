// SPDX-License-Identifier: Apache-2.0
// The pipelines that a worker reads: one, or after a restart on another number of workers those of
// the earlier workers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/iterator.h"

namespace cohort::input {

// Selects the elements of a sequence whose number mod `num` is `index`. A value type.
struct ModuloShard {
  std::int64_t num;
  std::int64_t index;
  std::uint64_t count = 0;  // elements seen
};

// The position of a shard: part `index` of `num` of the dataset, and which of its elements are this
// worker's. A value type.
struct ShardPosition {
  std::int64_t num = 1;
  std::int64_t index = 0;
  std::vector<ModuloShard> subshards = {};  // each applies to the elements of the one before
  // The number of elements and errors drawn. Two copies of a pipeline with equal counts are at the
  // same position, however far their threads have read ahead.
  std::uint64_t drawn = 0;
  std::string pipeline = {};  // the one that `state` belongs to
  Bytes state = {};           // empty: the beginning
};

// Opens part `index` of `num`.
using OpenShard =
    std::function<std::unique_ptr<data::ElementSource>(std::int64_t num, std::int64_t index)>;

// Reads some shards in turn, one element each. Used from one thread at a time.
class ShardReader final : public data::ElementSource {
 public:
  ShardReader(ElementSpec spec, OpenShard open) : spec_(std::move(spec)), open_(std::move(open)) {}

  // Replaces the shards; returns the elements of `leading` before theirs. `turn` is the index of
  // the shard whose turn it is.
  void set(std::vector<ShardPosition> positions, std::vector<Fields> leading, std::size_t turn);
  std::vector<ShardPosition> positions() const;
  std::vector<Fields> leading() const { return {leading_.begin(), leading_.end()}; }
  std::size_t turn() const { return turn_; }

  const ElementSpec& spec() const override { return spec_; }
  bool next(Fields& fields) override;

 private:
  struct Shard {
    ShardPosition start;  // `subshards` and `drawn` are kept current
    std::unique_ptr<data::ElementSource> source;
    bool has_ended = false;
    bool next(Fields& fields);
    bool draw(Fields& fields);
  };

  ElementSpec spec_;
  OpenShard open_;
  std::deque<Fields> leading_;
  std::vector<Shard> shards_;
  std::size_t turn_ = 0;
};

}  // namespace cohort::input
