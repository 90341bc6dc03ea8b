// SPDX-License-Identifier: Apache-2.0
// range: the numbers start, start + step, … before stop.
#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct RangeAttributes {
  static constexpr std::string_view kOp = "range";
  std::int64_t stop = 0;
  RangeOptions options = {};
  static void describe(auto& visit, auto& all) {
    visit("start", all.options.start);
    visit("stop", all.stop);
    visit("step", all.options.step);
    visit("dtype", all.options.dtype);
  }
};

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

class RangeNode final : public OpNode<RangeNode, RangeAttributes> {
 public:
  RangeNode(std::vector<NodePtr> inputs, const RangeAttributes& range)
      : OpNode(std::move(inputs), range),
        store_(std::make_shared<RangeStore>(range.options.start, range.options.step,
                                            checked_count(range.stop, range.options),
                                            range.options.dtype)) {
    const RangeOptions& options = range.options;
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
    const bool is_endless =
        store_->size() == kMost || (given().options.step > 0 && given().stop == kMost);
    return is_endless && store_->size() > 0 ? kInfiniteCardinality : store_->size();
  }

  std::unique_ptr<Stage> make_stage(const StageContext&) const override {
    return start_rows(*this, store_);
  }

 protected:
  ElementSpec make_spec() const override {
    return ElementSpec::tuple({{given().options.dtype, std::vector<std::int64_t>{}}});
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

  std::shared_ptr<const RangeStore> store_;
};

}  // namespace

NodePtr make_range(SerializedOp op) { return RangeNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::range(std::int64_t stop, RangeOptions options) {
  return data::RangeNode::source({stop, options});
}

}  // namespace cohort
