// SPDX-License-Identifier: Apache-2.0
// Record files (TFRecord): byte strings with checksums, one behind the other.
//
//   RecordWriter writer("train.tfrecord");
//   writer.write(example.serialize());
//   writer.close();
//   RecordReader reader("train.tfrecord");
//   while (const auto record = reader.next()) …
//
// Bytes: docs/formats/record.md. Offsets count unpacked bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/data/compression.h"

namespace cohort {

// Used from one thread at a time.
class COHORT_API RecordWriter {
 public:
  // A file that is there already is written anew.
  explicit RecordWriter(const std::string& path, Compression compression = Compression::none);
  // Closes; an error is lost, so call close().
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Each is failed_precondition after close(), which may be called again.
  void write(std::string_view record);
  void flush();  // to the operating system
  void close();

 private:
  class Output;
  std::unique_ptr<Output> output_;
};

struct RecordReaderOptions {
  Compression compression = Compression::none;
  std::int64_t buffer_bytes = 1 << 20;
};

// Used from one thread at a time.
class COHORT_API RecordReader {
 public:
  explicit RecordReader(const std::string& path, RecordReaderOptions options = {});
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // The next record, valid until the next call; nullopt at the end. data_loss, naming file and
  // byte, for a bad one: the position stays, and another call reads it again.
  std::optional<std::string_view> next();
  // Passes over records without looking at their data; how many there were.
  std::size_t skip(std::size_t count);
  // Where the next record begins.
  std::uint64_t offset() const;
  // Goes on at a record's offset, as offset() gave it.
  void seek(std::uint64_t offset);
  // The record at an offset; next() goes on behind it. out_of_range at the end.
  std::string_view read_at(std::uint64_t offset);

 private:
  class Input;
  std::unique_ptr<Input> input_;
};

// Where each record of an unpacked file begins, by its headers alone.
COHORT_API std::vector<std::uint64_t> record_offsets(const std::string& path);
// Writes `path`.index: with it, a pipeline reads the records it wants and no others. How many
// records there are.
COHORT_API std::uint64_t write_record_index(const std::string& path);

}  // namespace cohort
