// SPDX-License-Identifier: Apache-2.0
// rebatch: regroups rows into batches of a cyclic list of sizes (spec 3.4, V2).
#include <algorithm>
#include <deque>

#include "cohort/core/error.h"
#include "cohort/data/batching/rebatching.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/rows/field_rows.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kRebatchName = "rebatch";

void check_batches(const ElementSpec& spec, std::string_view op) {
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    COHORT_CHECK(!spec.fields[i].sizes || !spec.fields[i].sizes->empty(),
                 ErrorCode::invalid_argument, "[data.", op, "] expected batches, got ",
                 spec.to_string(), " with a scalar in field ", i, "; batch() first");
  }
}

// Rows that were read but not yielded yet. Used only from one stage.
class HeldRows {
 public:
  std::int64_t count() const { return count_; }

  // invalid_argument if the rows' shapes differ from the held ones; then it adds nothing.
  void add(Fields batch) {
    const std::int64_t rows = row_count(batch, kRebatchName);
    if (rows == 0) return;
    if (!parts_.empty()) check(batch);
    parts_.push_back({std::move(batch), 0, rows});
    count_ += rows;
  }

  // Removes the first `rows` rows. They share the memory of their batch if one batch has them all.
  Fields take(std::int64_t rows) {
    std::vector<Fields> pieces;
    count_ -= rows;
    while (rows > 0) {
      Part& part = parts_.front();
      const std::int64_t taken = std::min(rows, part.end - part.begin);
      pieces.push_back(piece(part, taken));
      part.begin += taken;
      rows -= taken;
      if (part.begin == part.end) parts_.pop_front();
    }
    return pieces.size() == 1 ? std::move(pieces.front()) : joined(pieces);
  }

  void save(ByteWriter& writer) const {
    writer.varint(parts_.size());
    for (const Part& part : parts_) write_fields(writer, piece(part, part.end - part.begin));
  }

  void restore(ByteReader& reader) {
    parts_.clear();
    count_ = 0;
    for (std::size_t left = reader.count(); left > 0; --left) add(read_fields(reader));
  }

 private:
  struct Part {
    Fields fields;
    std::int64_t begin;
    std::int64_t end;
  };

  static Fields piece(const Part& part, std::int64_t rows) {
    Fields fields;
    for (const at::Tensor& field : part.fields) {
      const bool is_whole = rows == field.size(0);
      fields.push_back(is_whole ? field : narrow_rows(field, part.begin, part.begin + rows));
    }
    return fields;
  }

  static Fields joined(const std::vector<Fields>& pieces) {
    Fields fields;
    for (std::size_t i = 0; i < pieces[0].size(); ++i) {
      Fields column;
      for (const Fields& piece : pieces) column.push_back(piece[i]);
      fields.push_back(join_rows(column));
    }
    return fields;
  }

  void check(const Fields& batch) const {
    const Fields& held = parts_.front().fields;
    COHORT_CHECK(batch.size() == held.size(), ErrorCode::invalid_argument,
                 "[data.rebatch] expected batches of ", held.size(), " fields, got ", batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      COHORT_CHECK(batch[i].scalar_type() == held[i].scalar_type() &&
                       batch[i].sizes().slice(1) == held[i].sizes().slice(1),
                   ErrorCode::invalid_argument, "[data.rebatch] expected rows of one shape: field ",
                   i, " of the last batch is ", TensorSpec::of(held[i]).to_string(), ", got ",
                   TensorSpec::of(batch[i]).to_string(), " in the next; use padded_batch()");
    }
  }

  std::deque<Part> parts_;
  std::int64_t count_ = 0;
};

class RebatchStage final : public Stage {
 public:
  RebatchStage(const Node& node, std::unique_ptr<Stage> input,
               const std::vector<std::int64_t>& sizes, bool drop_remainder)
      : Stage(node), input_(std::move(input)), sizes_(sizes), drop_remainder_(drop_remainder) {}

  bool next(Fields& fields) override {
    if (is_at_end_) return false;
    const std::int64_t size = sizes_[position_];
    if (size == 0) {
      advance();  // before the next line, which may throw: the error replaces the batch
      fields = empty_batch_of(spec());
      return true;
    }
    read(size);
    const bool is_full = held_.count() >= size;
    if (!is_full && (drop_remainder_ || held_.count() == 0)) return false;
    fields = held_.take(std::min(size, held_.count()));
    if (is_full) advance();
    return true;
  }

  void save(ByteWriter& writer) const override {
    writer.u8(is_at_end_ ? 1 : 0);
    writer.varint(position_);
    held_.save(writer);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    is_at_end_ = reader.u8() != 0;
    position_ = reader.varint();
    if (position_ >= sizes_.size()) reader.fail("a position in the list of sizes");
    held_.restore(reader);
    input_->restore(reader);
  }

 private:
  void advance() { position_ = (position_ + 1) % sizes_.size(); }

  void read(std::int64_t rows) {
    while (held_.count() < rows && !is_at_end_) {
      check_cancelled();
      Fields batch;
      is_at_end_ = !input_->next(batch);
      if (!is_at_end_) held_.add(std::move(batch));
    }
  }

  std::unique_ptr<Stage> input_;
  const std::vector<std::int64_t>& sizes_;  // of the node
  bool drop_remainder_;
  HeldRows held_;
  std::uint64_t position_ = 0;
  bool is_at_end_ = false;  // the input has ended; only held rows are left
};

class RebatchNode final : public Node {
 public:
  RebatchNode(NodePtr input, std::vector<std::int64_t> sizes, bool drop_remainder)
      : Node(kRebatchName, {std::move(input)}),
        sizes_(std::move(sizes)),
        drop_remainder_(drop_remainder) {
    for (const std::int64_t size : sizes_) {
      COHORT_CHECK(size >= 0, ErrorCode::invalid_argument,
                   "[data.rebatch] expected sizes >= 0, got ", size);
    }
    COHORT_CHECK(std::any_of(sizes_.begin(), sizes_.end(), [](std::int64_t s) { return s > 0; }),
                 ErrorCode::invalid_argument, "[data.rebatch] expected at least one size > 0, got ",
                 sizes_.size(), " sizes without one");
  }

  std::int64_t cardinality() const override { return kUnknownCardinality; }

  Attributes attributes() const override {
    return {{"sizes", Nest::list(Nest::Items(sizes_.begin(), sizes_.end()))},
            {"drop_remainder", drop_remainder_}};
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<RebatchNode>(std::move(inputs[0]), sizes_, drop_remainder_);
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return std::make_unique<RebatchStage>(*this, input().start(context.input(0)), sizes_,
                                          drop_remainder_);
  }

  ElementSpec make_spec() const override {
    ElementSpec spec = input().spec();
    check_batches(spec, kRebatchName);
    const std::int64_t size = sizes_[0];
    const bool is_one_size = std::count(sizes_.begin(), sizes_.end(), size) ==
                             static_cast<std::ptrdiff_t>(sizes_.size());
    for (TensorSpec& field : spec.fields) {
      if (!field.sizes) continue;
      std::int64_t& rows = field.sizes->front();
      rows = is_one_size && (drop_remainder_ || (rows >= 0 && rows % size == 0)) ? size : -1;
    }
    return spec;
  }

 private:
  std::vector<std::int64_t> sizes_;
  bool drop_remainder_;
};

std::vector<std::int64_t> integers_of(const Nest& list) {
  std::vector<std::int64_t> values;
  for (const Nest& item : list.items()) values.push_back(item.integer());
  return values;
}

}  // namespace

void check_batches(const Node& input, std::string_view op) {
  if (const ElementSpec* spec = input.known_spec()) check_batches(*spec, op);
}

NodePtr make_rebatch(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<RebatchNode>(std::move(inputs[0]), integers_of(attributes.nest("sizes")),
                                       attributes.boolean("drop_remainder"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::rebatch(std::vector<std::int64_t> sizes, RebatchOptions options) const {
  const auto node =
      std::make_shared<data::RebatchNode>(node_, std::move(sizes), options.drop_remainder);
  data::check_batches(*node_, data::kRebatchName);
  return Dataset(node);
}

}  // namespace cohort
