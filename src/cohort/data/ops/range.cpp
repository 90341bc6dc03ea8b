// SPDX-License-Identifier: Apache-2.0
// range: the numbers start, start + step, … before stop.
#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr std::string_view kRangeName = "range";

__extension__ using Wide = __int128;

std::int64_t count_of(std::int64_t start, std::int64_t stop, std::int64_t step) {
  const Wide distance = step > 0 ? Wide{stop} - start : Wide{start} - stop;
  const Wide stride = step > 0 ? Wide{step} : -Wide{step};
  const Wide count = distance <= 0 ? Wide{0} : (distance + stride - 1) / stride;
  COHORT_CHECK(count <= std::numeric_limits<std::int64_t>::max(), ErrorCode::invalid_argument,
               "[data.range] expected at most 2^63 - 1 elements, got more from start = ", start,
               ", stop = ", stop, ", step = ", step);
  return static_cast<std::int64_t>(count);
}

// Computes its elements. Immutable.
class RangeStore final : public RowStore {
 public:
  RangeStore(std::int64_t start, std::int64_t step, std::int64_t size, at::ScalarType dtype)
      : start_(start), step_(step), size_(size), dtype_(dtype) {}

  std::int64_t size() const override { return size_; }

  void element(std::int64_t row, Fields& fields) const override {
    fields.assign(1, at::empty({}, dtype_));
    fill(std::span(&row, 1), fields[0]);
  }

  void gather(std::span<const std::int64_t> rows, Fields& batch) const override {
    batch.assign(1, at::empty({static_cast<std::int64_t>(rows.size())}, dtype_));
    fill(rows, batch[0]);
  }

  std::int64_t value(std::int64_t row) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(start_) +
                                     static_cast<std::uint64_t>(row) *
                                         static_cast<std::uint64_t>(step_));
  }

 private:
  void fill(std::span<const std::int64_t> rows, const at::Tensor& values) const {
    AT_DISPATCH_ALL_TYPES(dtype_, "range", [&] {
      auto* out = values.data_ptr<scalar_t>();
      for (std::size_t i = 0; i < rows.size(); ++i) out[i] = static_cast<scalar_t>(value(rows[i]));
    });
  }

  std::int64_t start_;
  std::int64_t step_;
  std::int64_t size_;
  at::ScalarType dtype_;
};

bool holds(at::ScalarType dtype, std::int64_t value) {
  switch (dtype) {
    case at::ScalarType::Byte:
      return value >= 0 && value <= 255;
    case at::ScalarType::Char:
      return value >= -128 && value <= 127;
    case at::ScalarType::Short:
      return value >= -32768 && value <= 32767;
    case at::ScalarType::Int:
      return value == static_cast<std::int32_t>(value);
    default:
      return true;
  }
}

class RangeNode final : public Node {
 public:
  RangeNode(std::int64_t stop, const RangeOptions& options)
      : Node(kRangeName, {}),
        stop_(stop),
        options_(options),
        store_(std::make_shared<RangeStore>(options.start, options.step,
                                            checked_count(stop, options), options.dtype)) {
    const std::int64_t last = store_->size() > 0 ? store_->value(store_->size() - 1) : 0;
    COHORT_CHECK(
        store_->size() == 0 || (holds(options.dtype, options.start) && holds(options.dtype, last)),
        ErrorCode::invalid_argument, "[data.range] expected numbers that fit ",
        dtype_name(options.dtype), ", got ", options.start, " to ", last,
        "; choose a wider .dtype");
  }

  // As tf: a range up to the largest int64 is infinite.
  std::int64_t cardinality() const override {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    const bool is_endless = store_->size() == kMost || (options_.step > 0 && stop_ == kMost);
    return is_endless && store_->size() > 0 ? kInfiniteCardinality : store_->size();
  }

  Attributes attributes() const override {
    return {{"start", options_.start},
            {"stop", stop_},
            {"step", options_.step},
            {"dtype", static_cast<std::int64_t>(options_.dtype)}};
  }

  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }

  std::unique_ptr<Stage> make_stage(const StageContext&) const override {
    return start_rows(*this, store_);
  }

 protected:
  ElementSpec make_spec() const override {
    return ElementSpec::tuple({{options_.dtype, std::vector<std::int64_t>{}}});
  }

 private:
  static std::int64_t checked_count(std::int64_t stop, const RangeOptions& options) {
    COHORT_CHECK(options.step != 0, ErrorCode::invalid_argument,
                 "[data.range] expected step != 0, got 0");
    const auto dtype = options.dtype;
    COHORT_CHECK(
        dtype == at::kByte || dtype == at::kChar || dtype == at::kShort || dtype == at::kInt ||
            dtype == at::kLong || dtype == at::kFloat || dtype == at::kDouble,
        ErrorCode::invalid_argument,
        "[data.range] expected an integer dtype, float32 or float64, got ", dtype_name(dtype));
    return count_of(options.start, stop, options.step);
  }

  std::int64_t stop_;
  RangeOptions options_;
  std::shared_ptr<const RangeStore> store_;
};

}  // namespace

NodePtr make_range(std::vector<NodePtr>, AttributeReader& attributes) {
  const std::int64_t dtype = attributes.integer("dtype");
  COHORT_CHECK(dtype >= 0 && dtype < static_cast<std::int64_t>(at::ScalarType::NumOptions),
               ErrorCode::data_loss, "[data.range] expected a dtype, got ", dtype);
  return std::make_shared<RangeNode>(attributes.integer("stop"),
                                     RangeOptions{.start = attributes.integer("start"),
                                                  .step = attributes.integer("step"),
                                                  .dtype = static_cast<at::ScalarType>(dtype)});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::range(std::int64_t stop, RangeOptions options) {
  return Dataset(std::make_shared<data::RangeNode>(stop, options));
}

}  // namespace cohort
