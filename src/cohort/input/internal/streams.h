// SPDX-License-Identifier: Apache-2.0
// The pipelines a worker reads: one, or after a restart on another number of workers those of its
// predecessors.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/iterator.h"

namespace cohort::input {

// Of the elements of a stream those with number mod `num` == `index` are this worker's. A value
// type.
struct Share {
  std::int64_t num;
  std::int64_t index;
  std::uint64_t count = 0;  // elements seen
};

// Where a stream stands: the part `index` of `num` of the dataset, and what of it is one's own. A
// value type.
struct StreamPosition {
  std::int64_t num = 1;
  std::int64_t index = 0;
  std::vector<Share> shares = {};
  // Elements and errors that came of it: two copies of a pipeline that gave equally many stand at
  // the same place, whatever threads of theirs have made ahead.
  std::uint64_t drawn = 0;
  std::string pipeline = {};  // what `state` is of
  Bytes state = {};           // empty: the beginning

  void write(ByteWriter& writer) const;
  static StreamPosition read(ByteReader& reader);
};

// Starts part `index` of `num`.
using OpenStream =
    std::function<std::unique_ptr<ElementSource>(std::int64_t num, std::int64_t index)>;

// Some streams in turn, an element of each. Used from one thread at a time.
class Streams final : public ElementSource {
 public:
  Streams(ElementSpec spec, OpenStream open);

  // Reads these from now on.
  void set(std::vector<StreamPosition> positions);
  std::vector<StreamPosition> positions() const;
  // Elements to be handed out before those of the streams.
  void lead_with(std::vector<Fields> elements);
  std::vector<Fields> leading() const;
  // The stream whose turn it is.
  std::size_t turn() const { return turn_; }
  void set_turn(std::size_t turn) { turn_ = streams_.empty() ? 0 : turn % streams_.size(); }

  const ElementSpec& spec() const override { return spec_; }
  bool next(Fields& fields) override;

 private:
  struct Stream {
    StreamPosition start;  // shares and drawn are as of now
    std::unique_ptr<ElementSource> source;
    bool has_ended = false;
    bool next(Fields& fields);
    bool draw(Fields& fields);
  };

  ElementSpec spec_;
  OpenStream open_;
  std::deque<Fields> leading_;
  std::vector<Stream> streams_;
  std::size_t turn_ = 0;
};

}  // namespace cohort::input
