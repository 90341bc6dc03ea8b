// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/cache/cache_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cohort/core/file_descriptor.h"
#include "cohort/data/dataset.h"

namespace cohort::data {
namespace {

constexpr std::string_view kMagic = "CHDC";
constexpr std::uint8_t kVersion = 2;
constexpr const char* kRemedy = "; remove the file, or give each pipeline files of its own";

// The kind of a record. Part of the format.
enum Kind : std::uint8_t { header = 0, element = 1, end = 2 };

std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Bytes header_record(const CachedDataset& dataset) {
  ByteWriter writer;
  writer.u8(header);
  for (const char letter : kMagic) writer.u8(static_cast<std::uint8_t>(letter));
  writer.u8(kVersion);
  writer.text(dataset.spec);
  writer.u64(dataset.fingerprint);
  writer.zigzag(dataset.cardinality);
  return writer.take();
}

std::string size_in_words(std::int64_t cardinality) {
  if (cardinality == kUnknownCardinality) return "an unknown number of";
  return cardinality == kInfiniteCardinality ? "infinitely many" : std::to_string(cardinality);
}

[[noreturn]] void fail_to_write(const std::string& path) {
  internal::throw_error(ErrorCode::failed_precondition, "[data.cache] expected to write file '",
                        path, "', got: ", std::strerror(errno));
}

}  // namespace

std::string cache_path(const std::string& prefix) { return prefix + ".cache"; }

std::string partial_cache_path(const std::string& prefix) { return prefix + ".cache.partial"; }

// An exclusive lock on a partial file. The system releases it if the process dies.
class CacheFileWriter::FileLock {
 public:
  explicit FileLock(std::string path) : path_(std::move(path)) {
    while (!try_lock()) {
    }
  }

 private:
  // Returns false if the previous owner renamed or removed the file between open() and flock().
  bool try_lock() {
    FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!file.is_open()) fail_to_write(path_);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail_to_write(path_);
      internal::throw_error(
          ErrorCode::already_exists,
          "[data.cache] expected to be the only one that fills this cache, got "
          "another iterator that writes '",
          path_,
          "'; wait for its end, or give each iterator a file of its own: workers on "
          "one host need paths that differ, for example by "
          "InputContext::input_pipeline_id in create_per_worker_dataset()");
    }
    struct stat mine {};
    struct stat named {};
    const bool is_named = ::fstat(file.get(), &mine) == 0 && ::stat(path_.c_str(), &named) == 0 &&
                          mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
    if (is_named) file_ = std::move(file);
    return is_named;
  }

  std::string path_;
  FileDescriptor file_;
};

CacheFileWriter::CacheFileWriter(CachePaths paths, const CachedDataset& dataset)
    : paths_(std::move(paths)),
      lock_(std::make_unique<FileLock>(paths_.partial)),
      writer_(std::make_unique<RecordWriter>(paths_.partial)) {
  writer_->write(text_of(header_record(dataset)));
}

CacheFileWriter::~CacheFileWriter() {
  if (writer_) ::unlink(paths_.partial.c_str());
}

void CacheFileWriter::add(const Fields& fields) {
  ByteWriter writer;
  writer.u8(element);
  write_fields(writer, fields);
  writer_->write(text_of(writer.bytes()));
  ++count_;
}

void CacheFileWriter::finish() {
  ByteWriter writer;
  writer.u8(end);
  writer.u64(count_);
  writer_->write(text_of(writer.bytes()));
  writer_->close();
  if (::rename(paths_.partial.c_str(), paths_.whole.c_str()) != 0) fail_to_write(paths_.whole);
  writer_.reset();
  lock_.reset();
}

std::unique_ptr<CacheFileReader> CacheFileReader::open(const std::string& path,
                                                       const CachedDataset& dataset) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  std::unique_ptr<CacheFileReader> reader(new CacheFileReader(path));
  try {
    reader->check_header(dataset);
  } catch (const Error& problem) {
    reader->rethrow(problem);
  }
  return reader;
}

std::string_view CacheFileReader::record() {
  const std::optional<std::string_view> found = reader_.try_next();
  COHORT_CHECK(found && !found->empty(), ErrorCode::data_loss,
               "[data.cache] expected one more record, got the end of the file");
  return *found;
}

// The error of a record would name a way to skip what is damaged, but a cache can be whole again.
void CacheFileReader::rethrow(const Error& error) const {
  if (error.code() != ErrorCode::data_loss) throw;
  cohort::internal::throw_error(ErrorCode::data_loss, "[data.cache] expected the cache file '",
                                path_, "' as it was written, got a damaged one (after ", position_,
                                " elements); delete it: the next pass fills it again");
}

void CacheFileReader::check_header(const CachedDataset& dataset) {
  ByteReader reader(bytes_of(record()), "header of cache file '" + path_ + "'");
  if (reader.u8() != header) reader.fail("a header");
  for (const char letter : kMagic) {
    if (reader.u8() != static_cast<std::uint8_t>(letter)) reader.fail("a cache's magic");
  }
  const int version = reader.u8();
  COHORT_CHECK(version != 1, ErrorCode::failed_precondition,
               "[data.cache] expected a cache file that names its dataset, got '", path_,
               "' of an earlier release, which does not", kRemedy);
  if (version != kVersion) reader.fail("version 2");
  CachedDataset found;
  found.spec = reader.text();
  found.fingerprint = reader.u64();
  found.cardinality = reader.zigzag();
  reader.expect_end();
  check_same(found, dataset);
}

void CacheFileReader::check_same(const CachedDataset& found, const CachedDataset& expected) const {
  const bool is_spec_known = !found.spec.empty() && !expected.spec.empty();
  COHORT_CHECK(!is_spec_known || found.spec == expected.spec, ErrorCode::failed_precondition,
               "[data.cache] expected a cache of elements ", expected.spec, " in '", path_,
               "', got one of ", found.spec, kRemedy);
  COHORT_CHECK(found.cardinality == expected.cardinality, ErrorCode::failed_precondition,
               "[data.cache] expected a cache of ", size_in_words(expected.cardinality),
               " elements in '", path_, "', got one of ", size_in_words(found.cardinality),
               kRemedy);
  COHORT_CHECK(found.fingerprint == expected.fingerprint, ErrorCode::failed_precondition,
               "[data.cache] expected the elements of the ops before cache() in '", path_,
               "', got those of other ops, or of the same ops with other options, seeds, names of "
               "files or tensors",
               kRemedy);
}

bool CacheFileReader::next(Fields& fields) {
  try {
    return read(fields);
  } catch (const Error& error) {
    rethrow(error);
  }
}

bool CacheFileReader::read(Fields& fields) {
  const std::uint64_t begin = reader_.offset();
  ByteReader reader(bytes_of(record()),
                    "record at byte " + std::to_string(begin) + " of cache file '" + path_ + "'");
  const std::uint8_t kind = reader.u8();
  if (kind == end) {
    const std::uint64_t count = reader.u64();
    reader.expect_end();
    if (count != position_) reader.fail(std::to_string(position_) + " elements before its end");
    return false;
  }
  if (kind != element) reader.fail("an element");
  fields = read_fields(reader);
  reader.expect_end();
  ++position_;
  return true;
}

void CacheFileReader::seek(std::uint64_t offset, std::uint64_t position) {
  reader_.seek(offset);
  position_ = position;
}

}  // namespace cohort::data
