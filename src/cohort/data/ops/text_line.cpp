// SPDX-License-Identifier: Apache-2.0
// text_line: the lines of text files.
#include "cohort/core/error.h"
#include "cohort/data/files/file_reader.h"
#include "cohort/data/files/line_scanner.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

constexpr std::string_view kTextLineName = "text_line";

class TextLineNode final : public FileReaderNode {
 public:
  TextLineNode(FileNames names, FileOptions options)
      : FileReaderNode(kTextLineName, std::move(names), options) {}

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<TextLineNode>(names_in(std::move(inputs)), file_options());
  }

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    BufferedReader reader(open_stream(path, file_options().compression, kTextLineName),
                          file_options().buffer_bytes);
    if (file_options().compression == Compression::none) reader.check_is_text(path, kTextLineName);
    return std::make_unique<LineScanner>(std::move(reader));
  }
};

}  // namespace

NodePtr make_text_line(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<TextLineNode>(
      FileNames::from(std::move(inputs), attributes, kTextLineName), file_options_from(attributes));
}

Dataset raw_text_line(const StringTensor& files, FileOptions options) {
  return Dataset(std::make_shared<TextLineNode>(FileNames{nullptr, files.values()}, options));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::text_line(const Dataset& files, FileOptions options) {
  return Dataset(std::make_shared<data::TextLineNode>(
      data::FileNames::of(files, data::kTextLineName), options));
}

Dataset Dataset::text_line(StringTensor files, FileOptions options) {
  return Dataset(std::make_shared<data::TextLineNode>(data::FileNames::of(files), options));
}

}  // namespace cohort
