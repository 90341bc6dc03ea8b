// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/stages/stage.h"

#include <algorithm>
#include <array>
#include <exception>

#include "cohort/data/batching/batch_builder.h"

namespace cohort::data {
namespace {

// Rows are requested in pieces, so that a huge batch size does not allocate more than needed for
// the existing elements.
constexpr std::size_t kRowsAtOnce = 4096;

class SequentialRows final : public RowStage {
 public:
  SequentialRows(const Node& node, std::shared_ptr<const RowStore> store)
      : RowStage(node), store_(std::move(store)) {}

  const RowStore& store() const override { return *store_; }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    const std::size_t count = std::min<std::size_t>(rows.size(), store_->size() - next_);
    for (std::size_t i = 0; i < count; ++i) rows[i] = next_++;
    return count;
  }

  std::size_t skip_rows(std::size_t count) override {
    count = std::min<std::size_t>(count, store_->size() - next_);
    next_ += static_cast<std::int64_t>(count);
    return count;
  }

  std::optional<std::int64_t> rows_left() const override { return store_->size() - next_; }

  void describe_position(Position& at) override {
    at(next_);
    at.check(next_ >= 0 && next_ <= store_->size(), "a row of the source");
  }

 private:
  std::shared_ptr<const RowStore> store_;
  std::int64_t next_ = 0;
};

}  // namespace

void Stage::listen_to(std::shared_ptr<const Cancellation> cancellation) {
  if (!cancellation_) cancellation_ = std::move(cancellation);
}

void Stage::throw_cancelled() const {
  internal::throw_error(ErrorCode::cancelled, "[data.", node_->op(),
                        "] expected an iterator that runs, got one that was cancelled");
}

void Stage::save(ByteWriter& writer) const {
  Position at(writer);
  const_cast<Stage*>(this)->describe_position(at);  // NOLINT: changes nothing
}

void Stage::restore(ByteReader& reader) {
  Position at(reader);
  describe_position(at);
}

void Stage::stop_at_errors() {
  for (Stage* stage = this; stage != nullptr; stage = stage->batch_source())
    stage->stops_at_errors_ = true;
}

Nest Stage::pack(const Fields& fields) const {
  return ElementSpec{.structure = node_->structure(), .fields = {}}.pack(fields);
}

std::int64_t Stage::next_batch(std::int64_t count, Fields& batch) {
  BatchBuilder builder(count, node());
  std::exception_ptr first_error;
  Fields fields;
  std::optional<Error> uneven;
  std::int64_t drawn = 0;
  for (; drawn < count; ++drawn) {
    check_cancelled();
    try {
      if (!next(fields)) break;
    } catch (...) {
      if (stops_at_errors_) throw;
      if (!first_error) first_error = std::current_exception();
    }
    try {
      if (!first_error && !uneven) builder.add(fields);
    } catch (const Error& error) {
      uneven = error;  // the element is valid, but the batch is not
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  if (uneven) throw UnevenBatch(*uneven, drawn);
  const std::int64_t size = builder.size();
  if (size > 0) batch = std::move(builder).take();
  return size;
}

std::int64_t Stage::skip(std::int64_t count) {
  Fields fields;
  for (std::int64_t i = 0; i < count; ++i) {
    check_cancelled();
    try {
      if (!next(fields)) return i;
    } catch (const std::exception&) {
      continue;  // an error counts as a skipped element
    }
  }
  return count;
}

bool RowStage::next(Fields& fields) {
  std::int64_t row = 0;
  if (next_rows(std::span(&row, 1)) == 0) return false;
  store().element(row, fields);
  return true;
}

std::int64_t RowStage::next_batch(std::int64_t count, Fields& batch) {
  batch_rows_.clear();
  while (batch_rows_.size() < static_cast<std::size_t>(count)) {
    check_cancelled();
    const std::size_t filled = batch_rows_.size();
    const std::size_t wanted = std::min(kRowsAtOnce, static_cast<std::size_t>(count) - filled);
    batch_rows_.resize(filled + wanted);
    const std::size_t got = next_rows(std::span(batch_rows_).subspan(filled));
    batch_rows_.resize(filled + got);
    if (got < wanted) break;
  }
  if (!batch_rows_.empty()) store().gather(batch_rows_, batch);
  return static_cast<std::int64_t>(batch_rows_.size());
}

std::int64_t RowStage::skip(std::int64_t count) {
  return static_cast<std::int64_t>(skip_rows(static_cast<std::size_t>(count)));
}

std::size_t RowStage::skip_rows(std::size_t count) {
  std::array<std::int64_t, 256> rows;
  std::size_t skipped = 0;
  while (skipped < count) {
    check_cancelled();
    const std::size_t wanted = std::min(rows.size(), count - skipped);
    const std::size_t got = next_rows(std::span(rows).first(wanted));
    skipped += got;
    if (got < wanted) break;
  }
  return skipped;
}

std::unique_ptr<Stage> start_rows(const Node& node, std::shared_ptr<const RowStore> store) {
  return std::make_unique<SequentialRows>(node, std::move(store));
}

}  // namespace cohort::data
