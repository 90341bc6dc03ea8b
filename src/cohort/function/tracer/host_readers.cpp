// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/host_readers.h"

#include <algorithm>
#include <array>

#include "cohort/function/tracer/ops.h"

namespace cohort::function {
namespace {

struct HostRead {
  std::string_view name;
  std::string_view overload;
  std::size_t index;
};

// Composite operators that read their arguments with data_ptr() or accessor(), which the trace
// cannot see; and operators whose results have sizes that depend on such reads.
constexpr std::array<HostRead, 12> kHostReads = {{
    {"aten::ctc_loss", "Tensor", 2},
    {"aten::ctc_loss", "Tensor", 3},
    {"aten::tensor_split", "tensor_indices_or_sections", 1},
    {"aten::repeat_interleave", "Tensor", 0},
    {"aten::_pack_padded_sequence", "", 1},
    {"aten::_pack_padded_sequence_backward", "", 2},
    {"aten::_pad_packed_sequence", "", 1},
    {"aten::lstm", "data", 1},
    {"aten::gru", "data", 1},
    {"aten::rnn_tanh", "data", 1},
    {"aten::rnn_relu", "data", 1},
    {"aten::sparse_coo_tensor", "indices", 0},
}};

// Result `index` depends on the data of argument `source` alone.
struct Source {
  std::string_view name;
  std::size_t index;
  int source;
};
constexpr std::array<Source, 1> kSources = {{{"aten::_pack_padded_sequence", 1, 1}}};

constexpr std::array<std::string_view, 3> kSizesOfData = {"aten::_coalesce", "aten::to_sparse",
                                                          "aten::_to_sparse"};
constexpr std::array<std::string_view, 4> kParts = {"aten::_values", "aten::_indices",
                                                    "aten::values", "aten::indices"};

}  // namespace

bool reads_on_host(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                   std::size_t index) {
  const c10::OperatorName& name = op.operator_name();
  const bool is_listed =
      std::any_of(kHostReads.begin(), kHostReads.end(), [&](const HostRead& row) {
        return row.index == index && row.name == name.name && row.overload == name.overload_name;
      });
  // If the size is given, the kernel only checks it.
  const bool has_size =
      name.name == "aten::repeat_interleave" && arguments.size() > 1 && !arguments[1].isNone();
  return is_listed && !has_size;
}

int source_of_result(const c10::OperatorHandle& op, std::size_t result) {
  const auto found = std::find_if(kSources.begin(), kSources.end(), [&](const Source& row) {
    return row.index == result && row.name == op.operator_name().name;
  });
  return found == kSources.end() ? -1 : found->source;
}

bool has_size_of_data(const c10::OperatorHandle& op) {
  return contains(kSizesOfData, op.operator_name().name);
}

bool takes_sparse_apart(const c10::OperatorHandle& op) {
  return contains(kParts, op.operator_name().name);
}

bool reads_no_data(const c10::OperatorHandle& op) {
  return makes_memory_to_fill(op.operator_name().name);
}

}  // namespace cohort::function
