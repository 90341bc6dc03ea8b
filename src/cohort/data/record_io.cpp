// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/record_io.h"

#include "cohort/core/error.h"
#include "cohort/data/file_sink.h"
#include "cohort/data/files/record_scanner.h"

namespace cohort {

class RecordWriter::Output {
 public:
  Output(const std::string& path, Compression compression)
      : path_(path), file_(data::create_file(path, compression, "record_writer")) {}

  data::FileSink& open_file(std::string_view action) {
    COHORT_CHECK(file_ != nullptr, ErrorCode::failed_precondition,
                 "[data.record_writer] expected an open file to ", action, ", got '", path_,
                 "', which was closed");
    return *file_;
  }
  void close() {
    if (const std::unique_ptr<data::FileSink> file = std::move(file_)) file->close();
  }

 private:
  std::string path_;
  std::unique_ptr<data::FileSink> file_;  // null when closed
};

RecordWriter::RecordWriter(const std::string& path, Compression compression)
    : output_(std::make_unique<Output>(path, compression)) {}

RecordWriter::~RecordWriter() {
  try {
    close();
  } catch (...) {  // NOLINT: call close() to see errors
  }
}

void RecordWriter::write(std::string_view record) {
  data::FileSink& file = output_->open_file("write to");
  char header[data::kRecordHeaderBytes];
  data::encode_record_header(record.size(), header);
  char footer[data::kRecordFooterBytes];
  data::encode_record_footer(record, footer);
  file.write({header, sizeof(header)});
  file.write(record);
  file.write({footer, sizeof(footer)});
}

void RecordWriter::flush() { output_->open_file("flush").flush(); }

void RecordWriter::close() { output_->close(); }

class RecordReader::Input {
 public:
  Input(const std::string& path, RecordReaderOptions options)
      : path_(path),
        scanner_(data::BufferedReader(data::open_stream(path, options.compression, "record_reader"),
                                      options.buffer_bytes),
                 path, "record_reader") {}

  const std::string& path() const { return path_; }
  data::RecordScanner& scanner() { return scanner_; }

 private:
  std::string path_;
  data::RecordScanner scanner_;
};

RecordReader::RecordReader(const std::string& path, RecordReaderOptions options)
    : input_(std::make_unique<Input>(path, options)) {}

RecordReader::~RecordReader() = default;

std::optional<std::string_view> RecordReader::try_next() {
  std::string_view record;
  if (!input_->scanner().next(record)) return std::nullopt;
  return record;
}

std::size_t RecordReader::skip(std::size_t count) { return input_->scanner().skip(count); }

std::uint64_t RecordReader::offset() const { return input_->scanner().offset(); }

void RecordReader::seek(std::uint64_t offset) { input_->scanner().seek(offset); }

std::string_view RecordReader::read_at(std::uint64_t offset) {
  seek(offset);
  std::string_view record;
  COHORT_CHECK(input_->scanner().next(record), ErrorCode::out_of_range,
               "[data.record_reader] expected the offset of a record in '", input_->path(),
               "', got its end, ", offset);
  return record;
}

std::vector<std::uint64_t> record_offsets(const std::string& path) {
  return data::scan_record_index(path).offsets;
}

std::uint64_t write_record_index(const std::string& path) {
  const data::RecordIndex index = data::scan_record_index(path);
  data::save_record_index(index, data::index_path(path));
  return index.offsets.size();
}

}  // namespace cohort
