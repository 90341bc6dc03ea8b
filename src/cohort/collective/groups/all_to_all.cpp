// SPDX-License-Identifier: Apache-2.0
// Over exchange(): each member gets the rows of all, and takes those that are for it.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cohort/collective/group.h"
#include "cohort/core/computed.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::collective {
namespace {

constexpr std::string_view kName = "all_to_all";

// The values that one member sends.
struct Shipment {
  std::int64_t dtype = 0;
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> rows_of_each = {};
  std::span<const std::byte> values = {};

  TensorSpec spec() const { return {static_cast<at::ScalarType>(dtype), sizes}; }
  bool is_like(const Shipment& other) const {
    return dtype == other.dtype && sizes.size() == other.sizes.size() &&
           std::equal(sizes.begin() + 1, sizes.end(), other.sizes.begin() + 1);
  }
  // The bytes for one member.
  std::span<const std::byte> part_of(std::size_t rank) const {
    const auto before =
        std::accumulate(rows_of_each.begin(),
                        rows_of_each.begin() + static_cast<std::ptrdiff_t>(rank), std::int64_t{0});
    const std::size_t row = sizes[0] == 0 ? 0 : values.size() / static_cast<std::size_t>(sizes[0]);
    return values.subspan(static_cast<std::size_t>(before) * row,
                          static_cast<std::size_t>(rows_of_each[rank]) * row);
  }
};

void check(const at::Tensor& tensor, std::span<const std::int64_t> rows_of_each, int size) {
  COHORT_CHECK(tensor.defined(), ErrorCode::invalid_argument, "[collective.", kName,
               "] expected a tensor, got an undefined one");
  COHORT_CHECK(tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.dim() > 0,
               ErrorCode::invalid_argument, "[collective.", kName,
               "] expected a dense tensor on the CPU that has axis 0, got ",
               TensorSpec::of(tensor).to_string(), " of layout ", tensor.layout(), " on ",
               tensor.device().str());
  COHORT_CHECK(rows_of_each.size() == static_cast<std::size_t>(size), ErrorCode::invalid_argument,
               "[collective.", kName, "] expected a number of rows for each of ", size,
               " members in rows_of_each, got ", rows_of_each.size(), " numbers");
  std::int64_t sum = 0;
  for (const std::int64_t rows : rows_of_each) {
    COHORT_CHECK(rows >= 0 && rows <= tensor.size(0) - sum, ErrorCode::invalid_argument,
                 "[collective.", kName, "] expected rows_of_each to sum up to the ", tensor.size(0),
                 " rows of the tensor, got ", rows, " after ", sum);
    sum += rows;
  }
  COHORT_CHECK(sum == tensor.size(0), ErrorCode::invalid_argument, "[collective.", kName,
               "] expected rows_of_each to sum up to the ", tensor.size(0),
               " rows of the tensor, got ", sum);
}

Bytes encoded(const at::Tensor& tensor, std::span<const std::int64_t> rows_of_each) {
  const at::Tensor values = computed(tensor.detach()).contiguous();
  ByteWriter out;
  out.zigzag(static_cast<std::int64_t>(values.scalar_type()));
  out.sizes(values.sizes());
  out.sizes(rows_of_each);
  out.blob({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()});
  return out.take();
}

Shipment decoded(std::span<const std::byte> bytes, std::size_t size) {
  ByteReader reader(bytes, kName);
  Shipment shipment{.dtype = reader.zigzag(), .sizes = reader.sizes()};
  shipment.rows_of_each = reader.sizes();
  shipment.values = reader.blob();
  reader.expect_end();
  if (shipment.sizes.empty() || shipment.rows_of_each.size() != size)
    reader.fail("rows for each member");
  return shipment;
}

}  // namespace

at::Tensor Group::all_to_all(const at::Tensor& tensor, std::span<const std::int64_t> rows_of_each,
                             Deadline deadline) {
  const auto encode = [&] {
    check(tensor, rows_of_each, size());
    return encoded(tensor, rows_of_each);
  };
  const std::vector<Bytes> all = exchange_result(*this, encode, kName, deadline);
  std::vector<Shipment> shipments;
  for (const Bytes& bytes : all)
    shipments.push_back(decoded(bytes, static_cast<std::size_t>(size())));
  const auto own = static_cast<std::size_t>(rank());
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < shipments.size(); ++i) {
    COHORT_CHECK(shipments[i].is_like(shipments[0]), ErrorCode::invalid_argument, "[collective.",
                 kName, "] expected equal dtypes and sizes of rows from all members, got ",
                 shipments[0].spec().to_string(), " from ", member_name(0), " and ",
                 shipments[i].spec().to_string(), " from ", member_name(static_cast<int>(i)));
    rows += shipments[i].rows_of_each[own];
  }
  std::vector<std::int64_t> sizes = shipments[0].sizes;
  sizes[0] = rows;
  at::Tensor result = at::empty(sizes, tensor.scalar_type());
  auto* to = static_cast<std::byte*>(result.data_ptr());
  for (const Shipment& shipment : shipments) {
    const std::span<const std::byte> part = shipment.part_of(own);
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  return result;
}

}  // namespace cohort::collective
