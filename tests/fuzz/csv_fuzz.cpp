// SPDX-License-Identifier: Apache-2.0
// CSV files with columns of every dtype, with and without header, defaults and selected columns.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>
#include <string>

#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

CsvOptions options_of(std::uint8_t choice) {
  const bool has_default = (choice & 1) != 0;
  const auto number = has_default ? std::optional<Nest>(Nest(-1)) : std::nullopt;
  const auto text = has_default ? std::optional<Nest>(Nest("none")) : std::nullopt;
  CsvOptions options{.columns = {{.dtype = at::kInt, .default_value = number},
                                 {.dtype = at::kLong, .default_value = number},
                                 {.dtype = at::kFloat, .default_value = number},
                                 {.dtype = at::kDouble, .default_value = number},
                                 {.dtype = kString, .default_value = text}},
                     .header = (choice & 2) != 0,
                     .delimiter = (choice & 4) != 0 ? ';' : ',',
                     .na_value = (choice & 8) != 0 ? "NA" : ""};
  if ((choice & 16) != 0) options.select_columns = {0, 2, 3, 4, 6};
  if ((choice & 32) != 0) options.columns = {{.dtype = kString}};
  if ((choice & 48) == 48) options.select_columns = {1};
  if ((choice & 128) != 0) options.max_row_bytes = 24;
  options.file.buffer_bytes = 1;
  return options;
}

// The bytes of the next element's fields, "end", or the error.
std::string next_of(data::ElementSource& source) {
  std::string text;
  only_fails_with({ErrorCode::invalid_argument, ErrorCode::data_loss}, [&] {
    try {
      Fields fields;
      if (!source.next(fields)) text = "end";
      for (const at::Tensor& field : fields) {
        if (StringTensor::is(field)) {
          text += "s" + std::string(StringTensor::of(field).value());
        } else {
          text += "n" + std::string(static_cast<const char*>(field.data_ptr()), field.nbytes());
        }
      }
    } catch (const Error& error) {
      text = "error " + error.message();
      throw;
    }
  });
  return text;
}

void run(Input input) {
  static const ScratchFile file("rows");
  const std::uint8_t choice = input.byte();
  std::string content;
  // A long first row, so that later rows cross the ends of the buffer.
  if ((choice & 64) != 0) content = std::string(4096 - input.byte() % 64, 'x') + "\n";
  content += input.rest();
  file.write(content);
  const Dataset rows = Dataset::csv(StringTensor(file.path()), options_of(choice));
  const std::unique_ptr<data::ElementSource> elements = rows.source({});
  const std::unique_ptr<data::ElementSource> batches = rows.batch(1).source({});
  bool has_ended = false;
  for (std::size_t calls = 0; !has_ended; ++calls) {
    require(calls <= content.size() + 2, "more rows than bytes");
    const std::string element = next_of(*elements);
    require(next_of(*batches) == element, "other batches than elements");
    has_ended = element == "end";
  }
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run({data, size});
  return 0;
}
