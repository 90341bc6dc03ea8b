// SPDX-License-Identifier: Apache-2.0
// Record files and their checksums.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "cohort/data/record_io.h"
#include "tests/conformance/case_directory.h"
#include "tests/conformance/kinds.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

constexpr std::size_t kRecordHeader = 12;  // length and its checksum

std::string content_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

std::string eight_digits(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

void write_records(const std::string& path, const Json& records, bool is_written_after) {
  RecordWriter writer(path);
  for (const Json& record : records) writer.write(bytes_of(record));
  writer.close();
  if (is_written_after) writer.write("late");
}

Json read_at_offsets(RecordReader& reader, const std::vector<std::uint64_t>& offsets,
                     const Json& order) {
  Json reads = Json::array();
  for (const Json& index : order) {
    try {
      const auto at = index.get<std::size_t>();
      const std::string record(reader.read_at(offsets.at(at)));
      reads.push_back(text_of(record));
    } catch (...) {
      reads.push_back(caught_error());
    }
  }
  return reads;
}

}  // namespace

// Gets the checksum by writing a record: it follows the record's data.
Json run_crc(const Json& test_case) {
  const CaseDirectory directory{Json()};
  const std::string path = directory.path_of("crc");
  const std::string data = from_hex(member(test_case, "hex").get<std::string>());
  write_records(path, Json::array({{{"hex", to_hex(data)}}}), false);
  const std::string file = content_of(path);
  std::uint32_t masked = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    masked |= std::uint32_t{static_cast<unsigned char>(file.at(kRecordHeader + data.size() + i))}
              << (8 * i);
  }
  const std::uint32_t rotated = masked - 0xA282EAD8U;
  return {{"crc32c", eight_digits((rotated << 15) | (rotated >> 17))},
          {"masked", eight_digits(masked)}};
}

Json run_tfrecord_write(const Json& test_case) {
  const auto then = member_or<std::string>(test_case, "then", "");
  if (!then.empty() && then != "close_then_write") throw CaseFault("unknown 'then': " + then);
  const CaseDirectory directory{Json()};
  const std::string path = directory.path_of("records");
  try {
    write_records(path, member(test_case, "records"), !then.empty());
  } catch (...) {
    return {{"error", caught_error()}};
  }
  return {{"hex", to_hex(content_of(path))}};
}

Json run_tfrecord_random(const Json& test_case) {
  const CaseDirectory directory{Json()};
  const std::string path = directory.path_of("records");
  try {
    write_records(path, member(test_case, "records"), false);
    const std::vector<std::uint64_t> offsets = record_offsets(path);
    RecordReader reader(path);
    return {{"offsets", offsets},
            {"reads", read_at_offsets(reader, offsets, member(test_case, "order"))}};
  } catch (...) {
    return {{"error", caught_error()}};
  }
}

}  // namespace cohort::conformance
