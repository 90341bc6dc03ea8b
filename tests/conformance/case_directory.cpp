// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/case_directory.h"

#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian(((crc >> 15) | (crc << 17)) + 0xA282EAD8U, 4);
}

std::string compressed(const std::string& content, const std::string& compression) {
  if (compression.empty()) return content;
  constexpr int kLargestWindow = 15;
  constexpr int kGzip = 16;
  if (compression != "GZIP" && compression != "ZLIB") {
    throw CaseFault("unknown compression '" + compression + "'");
  }
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
               kLargestWindow + (compression == "GZIP" ? kGzip : 0), 8, Z_DEFAULT_STRATEGY);
  std::string result(deflateBound(&stream, content.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int code = deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  if (code != Z_STREAM_END) throw CaseFault("zlib could not compress a file of the case");
  return result;
}

std::string lines_of(const Json& records) {
  std::string text;
  for (const Json& record : records) text += bytes_of(record) + "\n";
  return text;
}

std::string content_of(const Json& entry) {
  const auto format = member(entry, "format").get<std::string>();
  if (format == "tfrecord") return record_file(member(entry, "records"));
  if (format == "text") {
    return entry.contains("text") ? bytes_of(entry["text"]) : lines_of(member(entry, "records"));
  }
  if (format == "bytes") return from_hex(member(entry, "hex").get<std::string>());
  throw CaseFault("unknown file format '" + format + "'");
}

std::string replaced(std::string text, std::string_view what, std::int64_t number) {
  const std::string by = std::to_string(number);
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += by.size();
  }
  return text;
}

}  // namespace

std::string record_file(const Json& records) {
  std::string bytes;
  for (const Json& record : records) {
    const std::string data = bytes_of(record);
    const std::string length = little_endian(data.size(), 8);
    bytes += length + masked_crc(length) + data + masked_crc(data);
  }
  return bytes;
}

CaseDirectory::CaseDirectory(const Json& files) {
  std::string name = (std::filesystem::temp_directory_path() / "cohort_case_XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw CaseFault("cannot make a directory " + name);
  path_ = name;
  try {
    for (const Json& entry : files) create(entry);
  } catch (...) {
    std::filesystem::remove_all(path_);
    throw;
  }
}

CaseDirectory::~CaseDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string CaseDirectory::path_of(std::string_view name) const { return (path_ / name).string(); }

Json CaseDirectory::without_path(const Json& value) const {
  if (value.is_string()) {
    const std::string prefix = path_.string() + "/";
    const auto& text = value.get_ref<const std::string&>();
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
  if (!value.is_structured()) return value;
  Json result = value;
  for (Json& part : result) part = without_path(part);
  return result;
}

void CaseDirectory::create(const Json& entry) {
  if (entry.contains("set")) return create_set(entry["set"]);
  write(member(entry, "name"), entry, content_of(entry));
}

void CaseDirectory::create_set(const Json& set) {
  const auto count = member(set, "count").get<std::int64_t>();
  const Json& per_file = member(set, "per_file");
  std::int64_t running = 0;
  for (std::int64_t f = 0; f < count; ++f) {
    const auto records = (per_file.is_array() ? per_file.at(static_cast<std::size_t>(f)) : per_file)
                             .get<std::int64_t>();
    Json entry = set;
    entry["records"] = Json::array();
    for (std::int64_t r = 0; r < records; ++r) {
      std::string record = member_or<std::string>(set, "record", "r{r}f{f}");
      record = replaced(replaced(std::move(record), "{r}", r), "{f}", f);
      entry["records"].push_back(replaced(std::move(record), "{g}", running++));
    }
    std::string name = replaced(member(set, "name").get<std::string>(), "{f}", f);
    write(name, entry, content_of(entry));
  }
}

void CaseDirectory::write(const std::string& name, const Json& entry,
                          const std::string& content) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream stream(file, std::ios::binary);
  stream << compressed(content, member_or<std::string>(entry, "compression", ""));
  if (!stream.flush()) throw CaseFault("cannot write " + file.string());
}

}  // namespace cohort::conformance
