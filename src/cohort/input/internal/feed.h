// SPDX-License-Identifier: Apache-2.0
// The mini-batches of a worker's replicas, in order: streams, then a cutter.
#pragma once

#include <memory>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/input/internal/cutter.h"
#include "cohort/input/internal/streams.h"

namespace cohort::input {

// The position of a feed, and the mini-batches drawn from it and not delivered. A value type.
struct FeedPosition {
  std::vector<Fields> undelivered = {};
  std::uint64_t cutter_index = 0;
  std::vector<Fields> rest = {};
  std::vector<Fields> leading = {};
  std::uint64_t turn = 0;
  std::vector<StreamPosition> streams = {};

  void write(ByteWriter& writer) const;
  static FeedPosition read(ByteReader& reader);
};

// Used from one thread at a time.
class Feed final : public ElementSource {
 public:
  Feed(Streams streams, std::unique_ptr<Cutter> cutter)
      : streams_(std::move(streams)), cutter_(std::move(cutter)) {}

  const ElementSpec& spec() const override { return streams_.spec(); }
  bool next(Fields& fields) override { return cutter_->next(streams_, fields); }
  // Without `undelivered`.
  FeedPosition position() const;
  void set(FeedPosition position);

 private:
  Streams streams_;
  std::unique_ptr<Cutter> cutter_;
};

}  // namespace cohort::input
