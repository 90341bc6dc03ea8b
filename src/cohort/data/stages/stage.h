// SPDX-License-Identifier: Apache-2.0
// One running op. There are two kinds: element stages yield tensors; row stages yield row numbers
// of a store, and nothing is copied until a batch gathers its rows, with one memcpy each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/positions/position.h"
#include "cohort/data/rows/row_store.h"

namespace cohort::data {

// A sequence of row numbers. Used only from its stage's thread.
class RowStream {
 public:
  virtual ~RowStream() = default;
  // The same for all stages that one node starts.
  virtual const RowStore& store() const = 0;
  // Writes the next row numbers to `rows`. Returns how many, fewer than rows.size() only at the
  // end.
  virtual std::size_t next_rows(std::span<std::int64_t> rows) = 0;
  // Skips rows. Returns how many, fewer than `count` only at the end.
  virtual std::size_t skip_rows(std::size_t count) = 0;
  // How many rows are left; nullopt if that is unknown without reading them.
  virtual std::optional<std::int64_t> rows_left() const { return std::nullopt; }
};

// The error of a batch whose elements have different shapes. An op that drops a short batch also
// drops this one if it is short.
class UnevenBatch final : public Error {
 public:
  UnevenBatch(const Error& error, std::int64_t size) : Error(error), size_(size) {}
  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_;
};

// Returns make(), which makes a batch from `size` elements and throws if their shapes differ; such
// an error is thrown as UnevenBatch.
template <class Make>
Fields even(Make make, std::int64_t size) {
  try {
    return make();
  } catch (const Error& error) {
    throw UnevenBatch(error, size);
  }
}

// Used from one thread at a time. Each of its virtuals is forwarded in stage_profiler.cpp.
class Stage : public ElementSource {
 public:
  explicit Stage(const Node& node) : node_(node.shared_from_this()) {}

  const ElementSpec& spec() const final { return node_->spec(); }
  Nest pack(const Fields& fields) const final;
  std::string pipeline() const final { return node_->pipeline(); }

  // Stacks the next `count` elements. Returns how many there were, 0 at the end. If one of them is
  // an error, all `count` elements are consumed and the error is thrown: an error discards a whole
  // batch, so the batch boundaries of all workers stay aligned.
  virtual std::int64_t next_batch(std::int64_t count, Fields& batch);
  // From now on, an error in next_batch() consumes only the elements up to it, and the next batch
  // begins with the element after it.
  void stop_at_errors();
  // Skips elements, if possible without making them. Returns how many, fewer than `count` only at
  // the end. An element that would have been an error counts.
  virtual std::int64_t skip(std::int64_t count);
  // Sets the Cancellation of the pipeline; only the first call has an effect. For Node::start().
  void listen_to(std::shared_ptr<const Cancellation> cancellation);
  // The stage whose next_batch() that of this one calls, and which stops at errors with it; null if
  // this one makes its batches itself.
  virtual Stage* batch_source() { return nullptr; }

  // Not null for a stage whose elements are these rows. Stage and stream share one position.
  virtual RowStream* rows() { return nullptr; }

  // Saves the position. A stage of an equal node that restores it yields what this one would have
  // yielded next.
  void save(ByteWriter& writer) const final;
  void restore(ByteReader& reader) final;
  // Names the parts of the position; changes nothing when it is saved.
  virtual void describe_position(Position& at) = 0;

 protected:
  const Node& node() const { return *node_; }
  // Throws `cancelled` if the pipeline was cancelled. A loop that may draw many elements of its
  // input, or wait for long, before it yields one calls this in each iteration.
  void check_cancelled() const {
    if (cancellation_ && cancellation_->is_cancelled()) throw_cancelled();
  }
  bool stops_at_errors() const { return stops_at_errors_; }

 private:
  [[noreturn]] void throw_cancelled() const;

  NodePtr node_;
  std::shared_ptr<const Cancellation> cancellation_;  // null until Node::start() returns
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

// A stage of the rows 0, 1, … of a store, for sources.
std::unique_ptr<Stage> start_rows(const Node& node, std::shared_ptr<const RowStore> store);

}  // namespace cohort::data
