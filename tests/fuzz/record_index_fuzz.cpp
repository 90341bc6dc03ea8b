// SPDX-License-Identifier: Apache-2.0
// The index of a record file: whatever it contains, every record that is read is right.
#include <algorithm>
#include <vector>

#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"
#include "cohort/data/record_io.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

const std::vector<std::string>& records() {
  static const std::vector<std::string> kRecords{"", "a", "bc", std::string(5000, 'x'), "end"};
  return kRecords;
}

const ScratchFile& record_file() {
  static const ScratchFile file("indexed");
  [[maybe_unused]] static const bool is_written = [] {
    RecordWriter writer(file.path());
    for (const std::string& record : records()) writer.write(record);
    writer.close();
    return true;
  }();
  return file;
}

std::string with_checksum(std::string_view index) {
  std::string bytes(index);
  const std::uint32_t checksum = masked_crc32c(bytes);
  return bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
}

void run(Input input) {
  const ScratchFile& file = record_file();
  static const ScratchFile index("indexed.index");
  const bool is_repaired = input.byte() != 0;
  index.write(is_repaired ? with_checksum(input.rest()) : std::string(input.rest()));
  Iterator iterator = Dataset::tf_record(StringTensor(file.path())).shard(2, 1).iterator();
  bool has_ended = false;
  for (std::size_t calls = 0; !has_ended; ++calls) {
    require(calls < 1000, "more records than the index has room for");
    only_fails_with({ErrorCode::data_loss}, [&] {
      const std::optional<Nest> element = iterator.try_next();
      has_ended = !element;
      if (has_ended) return;
      const std::string_view value = element->strings().value();
      require(std::find(records().begin(), records().end(), value) != records().end(),
              "a record that was never written");
    });
  }
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 1000) cohort::fuzz::run({data, size});
  return 0;
}
