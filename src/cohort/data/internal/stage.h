// SPDX-License-Identifier: Apache-2.0
// One running op. There are two kinds: element stages make tensors; row stages hand on the numbers
// of rows of a store, and nothing is copied until a batch gathers its rows, one memcpy each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/data/internal/node.h"
#include "cohort/data/internal/row_store.h"

namespace cohort::data {

// A sequence of row numbers. Used only from its stage's thread.
class RowStream {
 public:
  virtual ~RowStream() = default;
  // The same for every stage a node starts.
  virtual const RowStore& store() const = 0;
  // Writes the next rows; returns how many, fewer than asked only at the end.
  virtual std::size_t next_rows(std::span<std::int64_t> rows) = 0;
  // Passes over rows; returns how many there were.
  virtual std::size_t skip_rows(std::size_t count) = 0;
  // How many follow, where that is known at once.
  virtual std::optional<std::int64_t> rows_left() const { return std::nullopt; }
};

// Of elements whose shapes differ. Whoever drops a short batch drops such a one too.
class UnevenBatch final : public Error {
 public:
  UnevenBatch(const Error& error, std::int64_t size) : Error(error), size_(size) {}
  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_;
};

// What `make` makes of `size` elements; it fails where their shapes differ.
template <class Make>
Fields even(Make make, std::int64_t size) {
  try {
    return make();
  } catch (const Error& error) {
    throw UnevenBatch(error, size);
  }
}

// Used from one thread at a time. Each of its virtuals is forwarded in stage_book.cpp.
class Stage : public ElementSource {
 public:
  explicit Stage(const Node& node) : node_(node.shared_from_this()) {}

  const ElementSpec& spec() const final { return node_->spec(); }
  Nest pack(const Fields& fields) const final;
  std::string pipeline() const final { return node_->pipeline(); }

  // Stacks the next `count` elements; returns how many there were, 0 at the end. An error in one of
  // them consumes them all and is thrown in their place: whoever deals batches out stays in step.
  virtual std::int64_t next_batch(std::int64_t count, Fields& batch);
  // From now on it consumes itself and those before it, and the next batch begins behind it.
  virtual void stop_at_errors() { stops_at_errors_ = true; }
  // Passes over elements, without making them where it can; returns how many there were. An element
  // that would have failed counts.
  virtual std::int64_t skip(std::int64_t count);
  // The cancellation of the pipeline that it runs in; the first one stays. Node::start() calls it.
  void listen_to(std::shared_ptr<const Cancellation> cancellation);
  // Not null: this stage's elements are these rows, and whoever draws from one draws from the
  // other.
  virtual RowStream* rows() { return nullptr; }

  // The position: a stage of an equal node that restores it yields what this one would have yielded
  // next.
  void save(ByteWriter& writer) const override = 0;
  void restore(ByteReader& reader) override = 0;

 protected:
  const Node& node() const { return *node_; }
  // Throws `cancelled` once nobody wants the pipeline's elements any more. A loop that may draw
  // many elements of its input, or wait for long, before it hands on one calls it in each round.
  void check_cancelled() const {
    if (cancellation_ && cancellation_->is_cancelled()) throw_cancelled();
  }
  bool stops_at_errors() const { return stops_at_errors_; }

 private:
  [[noreturn]] void throw_cancelled() const;

  NodePtr node_;
  std::shared_ptr<const Cancellation> cancellation_;  // null until Node::start() has ended
  bool stops_at_errors_ = false;
};

// A stage of rows, for ops that only choose and order elements.
class RowStage : public Stage, public RowStream {
 public:
  using Stage::Stage;
  bool next(Fields& fields) final;
  std::int64_t next_batch(std::int64_t count, Fields& batch) final;
  std::int64_t skip(std::int64_t count) final;
  std::size_t skip_rows(std::size_t count) override;
  RowStream* rows() final { return this; }

 private:
  std::vector<std::int64_t> batch_rows_;
};

// The rows 0, 1, … of a store, for sources that have one.
std::unique_ptr<Stage> start_rows(const Node& node, std::shared_ptr<const RowStore> store);

}  // namespace cohort::data
