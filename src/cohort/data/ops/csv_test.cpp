// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <random>

#include "cohort/data/field_function.h"
#include "cohort/data/files/csv_number.h"
#include "cohort/data/files/csv_row.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/testing/test_seed.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Strings = std::vector<std::string>;

const CsvColumn kText{.dtype = kString};
const CsvColumn kWhole{.dtype = at::kLong};

class Csv : public ::testing::Test {
 protected:
  Dataset csv(std::string_view text, CsvOptions options) const {
    return Dataset::csv(StringTensor(directory_.write("c.csv", text)), std::move(options));
  }
  Strings rows(std::string_view text, CsvOptions options) const {
    return elements_of(csv(text, std::move(options)));
  }
  Strings texts(std::string_view text) const { return rows(text, {.columns = {kText, kText}}); }
  // Returns the messages of a dataset's errors.
  static Strings errors_of(const Dataset& dataset) {
    Strings errors;
    Iterator iterator = dataset.iterator();
    while (true) {
      try {
        if (!iterator.try_next()) return errors;
      } catch (const Error& error) {
        errors.emplace_back(error.what());
      }
    }
  }
  Strings errors(std::string_view text, CsvOptions options) const {
    return errors_of(csv(text, std::move(options)));
  }

  ScratchDirectory directory_;
};

Dataset suite_csv(CsvOptions options) {
  static const ScratchDirectory directory;
  const Strings files{directory.write("a", "id,v,s\n1,0.5,a\n2,,\"b,c\"\n"),
                      directory.write("b", "id,v,s\n3,2.5,\n")};
  options.header = true;
  options.columns = {kWhole,
                     {.dtype = at::kFloat, .default_value = -1.0},
                     {.dtype = kString, .default_value = "none"}};
  return Dataset::csv(StringTensor(files), std::move(options));
}

INSTANTIATE_TEST_SUITE_P(
    Csv, DatasetOp,
    ::testing::Values(DatasetOpCase{"Plain", [] { return suite_csv({}); }},
                      DatasetOpCase{"Parallel",
                                    [] { return suite_csv({.file = {.num_parallel_reads = 2}}); }},
                      DatasetOpCase{"Batched", [] { return suite_csv({}).batch(2); }},
                      DatasetOpCase{"Choice", [] {
                                      return suite_csv({})
                                          .shuffle(2,
                                                   {.seed = 1, .reshuffle_each_iteration = false})
                                          .batch(2);
                                    }}));

TEST_F(Csv, MakesWholeBatchesOfTheSameValues) {
  EXPECT_THAT(elements_of(suite_csv({}).batch(2)),
              ElementsAre("([1, 2], [0.5, -1], ['a', 'b,c'])", "([3], [2.5], ['none'])"));
  const CsvColumn real{.dtype = at::kDouble, .default_value = 1};
  const CsvOptions options{
      .columns = {{.dtype = at::kInt}, real, kText}, .na_value = "NA", .select_columns = {1, 2, 4}};
  EXPECT_THAT(elements_of(csv("x,1,NA,x,a\nx,-2, 0x1p1 ,x,\"\"\"b\"\n", options).batch(2)),
              ElementsAre("([1, -2], [1, 2], ['a', '\"b'])"));
}

TEST_F(Csv, MakesBatchesLargerThanItsFirstMemory) {
  std::string text;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 10'000; ++i) {
    text += std::to_string(i) + ",s" + std::to_string(i) + "\n";
    sum += i;
  }
  const CsvOptions options{.columns = {kWhole, kText}};
  for (const std::int64_t size : {1, 7, 5'000, 10'000, 20'000}) {
    std::int64_t seen = 0;
    for (const Nest& batch : csv(text, options).batch(size)) {
      const at::Tensor& numbers = batch.items()[0].tensor();
      const StringTensor strings = batch.items()[1].strings();
      for (std::int64_t i = 0; i < numbers.numel(); ++i) {
        const auto number = numbers[i].item<std::int64_t>();
        seen += number;
        ASSERT_EQ(strings[i], "s" + std::to_string(number));
      }
    }
    EXPECT_EQ(seen, sum) << size;
  }
}

TEST_F(Csv, LosesNothingBehindABadRowOfABatch) {
  const CsvOptions options{.columns = {kText, kWhole}};
  EXPECT_THAT(
      elements_of(csv("a,1\nb,x\nc,3\nd,4\ne\n", options).batch(2)),
      ElementsAre("error invalid_argument", "(['c', 'd'], [3, 4])", "error invalid_argument"));
  Iterator iterator = csv("1\nx1\n", {.columns = {kWhole}}).batch(2).iterator();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).what(),
              AllOf(HasSubstr("int64 in column 0, got 'x1'"), HasSubstr(directory_.file("c.csv")),
                    HasSubstr("byte 5")));
}

// docs/guide/data.md describes this effect of errors on batches; tf runs a map and its batch as one
// op.
TEST_F(Csv, LosesWhatIsBehindABadRowWhereAMapIsBatched) {
  const Dataset lines =
      csv("A,1\nB,x\nC,3\nD,4\nE,5\n", {.columns = {kText, kWhole}}).map(lower(0));
  EXPECT_THAT(elements_of(lines.batch(3)),
              ElementsAre("error invalid_argument", "(['d', 'e'], [4, 5])"));
  EXPECT_THAT(elements_of(lines.prefetch(1).batch(3)),
              ElementsAre("error invalid_argument", "(['c', 'd', 'e'], [3, 4, 5])"));
  EXPECT_THAT(elements_of(lines.ignore_errors().batch(3)),
              ElementsAre("(['a', 'c', 'd'], [1, 3, 4])", "(['e'], [5])"));
}

TEST_F(Csv, FindsRowsOfEveryKindAcrossBuffers) {
  for (const std::string_view end : {"\n", "\r\n", "\r"}) {
    std::string text;
    std::vector<std::string> expected;
    for (int i = 0; i < 3'000; ++i) {
      const bool is_quoted = i % 1'000 > 990;
      text += is_quoted ? "\"q\n" + std::to_string(i) + "\"" : "p" + std::to_string(i);
      text += end;
      expected.push_back("('" + std::string(is_quoted ? "q\n" : "p") + std::to_string(i) + "')");
    }
    const Dataset dataset = Dataset::csv(StringTensor(directory_.write("t", text)),
                                         {.columns = {kText}, .file = {.buffer_bytes = 1}});
    EXPECT_EQ(elements_of(dataset), expected);
  }
}

TEST(NextCharacter, IsFoundAgainWhereTheTextWasCutOrGrew) {
  NextCharacter comma(',');
  constexpr std::string_view kLetters = "ab,cd,ef";
  EXPECT_EQ(comma.find_in(kLetters.substr(0, 2), 0), std::string_view::npos);
  EXPECT_EQ(comma.find_in(kLetters, 0), 2U);
  EXPECT_EQ(comma.find_in(kLetters.substr(1), 1), 1U);
  EXPECT_EQ(comma.find_in(kLetters.substr(3), 3), 2U);
  EXPECT_EQ(comma.find_in(kLetters.substr(6), 6), std::string_view::npos);
  comma.restart();
  EXPECT_EQ(comma.find_in(kLetters, 0), 2U);
}

TEST_F(Csv, YieldsRowsAsTuples) {
  EXPECT_THAT(elements_of(suite_csv({})),
              ElementsAre("(1, 0.5, 'a')", "(2, -1, 'b,c')", "(3, 2.5, 'none')"));
  EXPECT_EQ(suite_csv({}).element_spec().to_string(), "(int64[], float32[], string[])");
}

TEST_F(Csv, MakesATupleOfOneColumn) {
  EXPECT_THAT(rows("1\n2\n", {.columns = {kWhole}}), ElementsAre("(1)", "(2)"));
}

TEST_F(Csv, SelectsColumns) {
  const CsvOptions options{.columns = {kWhole, kText}, .select_columns = {0, 2}};
  EXPECT_THAT(rows("1,0.5,a\n2,,\"b,c\",more\n3,x\n", options),
              ElementsAre("(1, 'a')", "(2, 'b,c')", "error invalid_argument"));
}

TEST_F(Csv, ReportsAMissingFieldOfItsRowAlone) {
  EXPECT_THAT(rows("1,a\n,b\n3,c\n", {.columns = {kWhole, kText}}),
              ElementsAre("(1, 'a')", "error invalid_argument", "(3, 'c')"));
}

TEST_F(Csv, TakesAWordForAMissingField) {
  const CsvOptions options{.columns = {{.dtype = at::kInt, .default_value = 7}, kText},
                           .na_value = "NA"};
  EXPECT_THAT(rows("NA,1\n\"NA\",2\n\"\",3\n4,NA\n", options),
              ElementsAre("(7, '1')", "(7, '2')", "(7, '3')", "error invalid_argument"));
}

TEST_F(Csv, EndsRowsInEveryWay) {
  EXPECT_THAT(texts("a,b\rc,d\r\ne,f"), ElementsAre("('a', 'b')", "('c', 'd')", "('e', 'f')"));
  EXPECT_THAT(texts("a,b\n\nc,d\n"),
              ElementsAre("('a', 'b')", "error invalid_argument", "('c', 'd')"));
  EXPECT_THAT(rows("1\n\n2\n", {.columns = {{.dtype = at::kInt, .default_value = 0}}}),
              ElementsAre("(1)", "(0)", "(2)"));
  EXPECT_THAT(texts(""), ElementsAre());
}

TEST_F(Csv, ReadsQuotedFields) {
  EXPECT_THAT(texts("a,\"b\nc\"\n"), ElementsAre("('a', 'b\nc')"));
  EXPECT_THAT(texts("\"a\"\"b\",\"\"\"\"\n"), ElementsAre("('a\"b', '\"')"));
  EXPECT_THAT(texts("\"a\r\nb\",c\r\nd,e"), ElementsAre("('a\r\nb', 'c')", "('d', 'e')"));
}

// A quote that nothing closes once took the rest of the file with it.
TEST_F(Csv, ReportsQuotesInTheWrongPlaceOfTheirLineAlone) {
  for (const std::string line : {"a,b\"c", "a,\"b\"c", "a,\"b", "a,\"b\"c\"", "a,\"b\"\"c"}) {
    for (const std::string end : {"\n", "\r\n", "\r"}) {
      EXPECT_THAT(texts(line + end + "d,e" + end + "f,\"g" + end + "g\"" + end),
                  ElementsAre("error invalid_argument", "('d', 'e')", "('f', 'g" + end + "g')"));
    }
  }
  EXPECT_THAT(texts("\"x\nx\",\"b\nc,d\n"), ElementsAre("error invalid_argument", "('c', 'd')"));
  EXPECT_THAT(elements_of(csv("a,\"b\nc,d\ne,f\ng,h\n", {.columns = {kText, kText}}).batch(2)),
              ElementsAre("error invalid_argument", "(['c', 'e'], ['d', 'f'])", "(['g'], ['h'])"));
}

TEST_F(Csv, NamesTheLineInWhichAQuoteOpened) {
  const CsvOptions options{.columns = {kText, kText}};
  EXPECT_THAT(errors("1,2\n\"a\nb\",\"c\nd,e\n", options),
              ElementsAre(AllOf(HasSubstr("a quoted field without its end, which begins in line 3; "
                                          "reading continues after line 3"),
                                HasSubstr("c.csv', lines 2 to 3, before byte 13"))));
  EXPECT_THAT(
      errors("1,\"2\n3,4\n\"5,6\n", options),
      ElementsAre(AllOf(HasSubstr("must be doubled, in line 3; the field begins with a quote "
                                  "in line 1; reading continues after line 1"),
                        HasSubstr("c.csv', line 1,")),
                  HasSubstr("begins in line 3; reading continues after line 3")));
}

// Two stray quotes may be a field of RFC 4180, which swallows the rows between them.
TEST_F(Csv, NamesBothLinesOfARowThatTwoQuotesMake) {
  const CsvOptions options{.columns = {kWhole, kWhole}};
  const Dataset dataset = csv("1,\"2\n3,4\n5,6\"\n7,8\n", options);
  EXPECT_THAT(elements_of(dataset), ElementsAre("error invalid_argument", "(7, 8)"));
  EXPECT_THAT(errors_of(dataset), ElementsAre(HasSubstr("c.csv', lines 1 to 3, column 1, before")));
}

// It took the square of the file's size.
TEST_F(Csv, ReportsRowsThatAreTooLong) {
  CsvOptions options{.columns = {kText, kText}, .max_row_bytes = 10};
  const std::string text =
      "12345,6789\n12345,67890\na,b\n\"123456789012\",b\nc,\"d\n23456789012345\ne,f\n";
  for (const std::int64_t buffer_bytes : {1, 1 << 20}) {
    options.file.buffer_bytes = buffer_bytes;
    EXPECT_THAT(rows(text, options),
                ElementsAre("('12345', '6789')", "error invalid_argument", "('a', 'b')",
                            "error invalid_argument", "error invalid_argument",
                            "error invalid_argument", "('e', 'f')"));
    EXPECT_THAT(
        errors(text, options),
        ElementsAre(HasSubstr("rows of at most max_row_bytes = 10, got a longer one in line 2; if "
                              "the row is right, raise .max_row_bytes"),
                    HasSubstr("which begins in line 4 and has more than max_row_bytes = 10;"),
                    HasSubstr("which begins in line 5 and has more than max_row_bytes = 10; "
                              "reading continues after line 5"),
                    HasSubstr("got a longer one in line 6")));
  }
  options.max_row_bytes = 0;
  EXPECT_THAT(error_of([&] { csv("", options); }).message(),
              HasSubstr("expected max_row_bytes > 0, got 0"));
}

TEST_F(Csv, ShipsTheGreatestLengthOfARow) {
  const CsvOptions options{.columns = {kText}, .max_row_bytes = 3};
  EXPECT_THAT(elements_of(shipped(csv("abc\nabcd\nx\n", options))),
              ElementsAre("('abc')", "error invalid_argument", "('x')"));
}

TEST_F(Csv, GoesOnBehindABadQuoteAfterARestore) {
  const Dataset dataset = csv("a,\"b\nc,d\ne,f\n", {.columns = {kText, kText}});
  Iterator iterator = dataset.iterator();
  EXPECT_EQ(error_of([&] { iterator.try_next(); }).code(), ErrorCode::invalid_argument);
  Iterator restored = dataset.iterator();
  restored.restore(iterator.save());
  EXPECT_THAT(drain(restored), ElementsAre("('c', 'd')", "('e', 'f')"));
}

// The number of fields was named, but not why it was wrong.
TEST_F(Csv, SaysThatALineIsBlankAndTakesNoneAtTheEndForARow) {
  const auto blank = HasSubstr("expected 2 fields in a row, got a blank line; remove it");
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    EXPECT_THAT(
        errors("1,2" + end + end + end + "3,4" + end + end + end, {.columns = {kWhole, kWhole}}),
        ElementsAre(AllOf(blank, HasSubstr("line 2,")), AllOf(blank, HasSubstr("line 3,"))));
  }
  EXPECT_THAT(errors("a\n\nb\n\n", {.columns = {kText}}),
              ElementsAre(HasSubstr("expected 1 field in a row, got a blank line")));
  EXPECT_THAT(texts("\n\n"), ElementsAre());
  EXPECT_THAT(errors("\n\n", {.columns = {kText}, .header = true}),
              ElementsAre(HasSubstr("got an empty file")));
  EXPECT_THAT(rows("1\n\n", {.columns = {{.dtype = at::kInt, .default_value = 0}}}),
              ElementsAre("(1)", "(0)"));
}

// The bytes of the packed file were taken for rows, and only idx told why.
TEST_F(Csv, SaysThatAFileIsCompressed) {
  for (const Compression compression : {Compression::gzip, Compression::zlib}) {
    const std::string file = directory_.write("packed", "1,2\n3,4\n", compression);
    const std::string remedy = compression == Compression::gzip
                                   ? "gzip: set .compression = Compression::gzip"
                                   : "zlib: set .compression = Compression::zlib";
    const StringTensor files(file);
    EXPECT_THAT(
        errors_of(Dataset::csv(files, {.columns = {kText, kText}})),
        ElementsAre(AllOf(HasSubstr("[data.csv] expected text in '" + file), HasSubstr(remedy))));
    EXPECT_THAT(errors_of(Dataset::text_line(files)),
                ElementsAre(AllOf(HasSubstr("[data.text_line] expected text in '" + file),
                                  HasSubstr(remedy))));
    EXPECT_THAT(errors_of(Dataset::tf_record(files)), ElementsAre(HasSubstr(remedy)));
  }
  EXPECT_THAT(texts("x\x9c,b\n"), ElementsAre("('x\x9c', 'b')"));
}

TEST_F(Csv, ReportsRowsOfAnotherLength) {
  EXPECT_THAT(texts("a\nb,c\nd,e,f\ng,h\n"), ElementsAre("error invalid_argument", "('b', 'c')",
                                                         "error invalid_argument", "('g', 'h')"));
}

TEST_F(Csv, NamesFileColumnAndValueOfABadRow) {
  Iterator iterator = csv("1\nx1\n", {.columns = {kWhole}}).iterator();
  iterator.try_next();
  const Error error = error_of([&] { iterator.try_next(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("int64 in column 0, got 'x1'"),
                                  HasSubstr(directory_.file("c.csv")), HasSubstr("byte 5")));
}

// A row was named by a byte alone.
TEST_F(Csv, NamesTheLineInWhichABadRowBegins) {
  const CsvOptions options{.columns = {kWhole, kText}};
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const std::string text = "1,a" + end + "2,\"b" + end + "b\"" + end + "x,c" + end + "y,d" + end;
    EXPECT_THAT(errors(text, options), ElementsAre(HasSubstr("c.csv', line 4, column 0, before"),
                                                   HasSubstr("c.csv', line 5, column 0, before")));
    EXPECT_THAT(errors_of(csv(text, options).batch(3)),
                ElementsAre(HasSubstr(", line 4,"), HasSubstr(", line 5,")));
  }
  EXPECT_THAT(errors("1,a\nb\n", options), ElementsAre(HasSubstr("c.csv', line 2, before byte 6")));
}

TEST_F(Csv, NamesTheLineBehindManyOthers) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i) + "\n";
  const std::string path = directory_.write("packed", text + "x\n7\nx\n", Compression::gzip);
  const Dataset dataset = Dataset::csv(
      StringTensor(path), {.columns = {kWhole}, .file = {.compression = Compression::gzip}});
  EXPECT_THAT(errors_of(dataset), ElementsAre(HasSubstr("line 20001,"), HasSubstr("line 20003,")));
  Iterator first = dataset.iterator();
  for (int i = 0; i < 20'000; ++i) first.get_next();
  EXPECT_THAT(error_of([&] { first.get_next(); }).what(), HasSubstr("line 20001,"));
  Iterator second = dataset.iterator();
  second.restore(first.save());
  second.get_next();
  EXPECT_THAT(error_of([&] { second.get_next(); }).what(), HasSubstr("line 20003,"));
}

TEST_F(Csv, NamesTheByteAloneWhereTheFileIsGone) {
  Iterator iterator = csv("1\nx\n", {.columns = {kWhole}}).iterator();
  iterator.get_next();
  std::filesystem::remove(directory_.file("c.csv"));
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).what(),
              AllOf(HasSubstr("c.csv', column 0, before byte 4"), Not(HasSubstr(", line"))));
}

// The message named a column by a number, but not whether counting starts at 0.
TEST_F(Csv, NamesTheColumnAsTheHeaderDoes) {
  const CsvOptions options{.columns = {kWhole, kWhole}, .header = true, .select_columns = {0, 2}};
  EXPECT_THAT(
      errors("id,x,\"the, age\"\n1,2,3\n4,5,x\n6,7,\n", options),
      ElementsAre(AllOf(HasSubstr("int64 in column 2, got 'x' (columns are counted from 0);"),
                        HasSubstr("c.csv', line 3, column 2 ('the, age'), before byte")),
                  AllOf(HasSubstr("a value in column 2, which is required, got '' (columns"),
                        HasSubstr("line 4, column 2 ('the, age')"))));
  EXPECT_THAT(errors("id\n1,2,x\n", options), ElementsAre(HasSubstr("line 2, column 2, before")));
}

// The error did not explain why the names of columns were no numbers.
TEST_F(Csv, SaysHowToPassOverAHeader) {
  const CsvOptions options{.columns = {kWhole, kWhole}};
  const auto remedy = HasSubstr("; where the first line names the columns, set .header = true");
  EXPECT_THAT(errors("id,age\n1,2\nx,3\n", options), ElementsAre(remedy, Not(remedy)));
  EXPECT_THAT(errors_of(csv("id,age\n1,2\n", options).batch(2)), ElementsAre(remedy));
}

// The mark became part of the first field, or a quote after it was refused as misplaced.
TEST_F(Csv, PassesOverAByteOrderMark) {
  const std::string mark(kByteOrderMark);
  EXPECT_THAT(texts(mark + "a,b\n" + mark + "c,d\n"),
              ElementsAre("('a', 'b')", "('" + mark + "c', 'd')"));
  EXPECT_THAT(texts(mark + "\"a\",b\n"), ElementsAre("('a', 'b')"));
  EXPECT_THAT(texts(mark), ElementsAre());
  EXPECT_THAT(texts(mark.substr(0, 2)), ElementsAre("error invalid_argument"));
  const CsvOptions options{.columns = {kWhole}, .header = true};
  EXPECT_THAT(errors(mark + "\"id\"\nx\n", options),
              ElementsAre(HasSubstr("line 2, column 0 ('id')")));
  EXPECT_THAT(errors(mark, options), ElementsAre(HasSubstr("got an empty file")));
  EXPECT_THAT(errors(mark + "id\n", {.columns = {kWhole}}),
              ElementsAre(HasSubstr(".header = true")));
}

TEST_F(Csv, SaysHowToReadRowsOfAnotherLength) {
  EXPECT_THAT(
      errors("a;b\n", {.columns = {kText, kText}}),
      ElementsAre(AllOf(HasSubstr("expected 2 fields in a row, got 1; describe every column"),
                        HasSubstr("the .delimiter is ','"))));
}

TEST_F(Csv, WantsTheHeaderOfEveryFile) {
  EXPECT_THAT(rows("\"h\nh\"\n1\n", {.columns = {kWhole}, .header = true}), ElementsAre("(1)"));
  EXPECT_THAT(rows("h", {.columns = {kWhole}, .header = true}), ElementsAre());
  EXPECT_THAT(rows("", {.columns = {kWhole}, .header = true}),
              ElementsAre("error invalid_argument"));
}

TEST_F(Csv, TakesAnotherDelimiter) {
  EXPECT_THAT(rows("a,b;c\n", {.columns = {kText, kText}, .delimiter = ';'}),
              ElementsAre("('a,b', 'c')"));
}

TEST_F(Csv, ReadsRowsAcrossBufferBorders) {
  const std::string wide(9'000, 'w');
  const std::string path =
      directory_.write("t", "\"" + wide + "\n" + wide + "\"\r\n" + wide + "\rx");
  EXPECT_THAT(elements_of(Dataset::csv(StringTensor(path),
                                       {.columns = {kText}, .file = {.buffer_bytes = 1}})),
              ElementsAre("('" + wide + "\n" + wide + "')", "('" + wide + "')", "('x')"));
}

TEST_F(Csv, RefusesImpossibleOptions) {
  const auto code_of = [&](CsvOptions options) {
    return error_of([&] { csv("", std::move(options)); }).code();
  };
  EXPECT_EQ(code_of({}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {{.dtype = at::kByte}}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {{.dtype = at::kLong, .default_value = "x"}}}),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {kText}, .delimiter = '"'}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {kText}, .select_columns = {0, 1}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {kText, kText}, .select_columns = {1, 1}}),
            ErrorCode::invalid_argument);
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value = 0;
  return parse_number(text, value) ? std::optional<T>(value) : std::nullopt;
}

TEST(CsvNumber, IsReadAsTheOriginalDoes) {
  EXPECT_EQ(number<std::int32_t>(" 12 "), 12);
  EXPECT_EQ(number<std::int64_t>("+5"), 5);
  EXPECT_EQ(number<std::int64_t>("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(number<std::int32_t>("2147483648"), std::nullopt);
  EXPECT_EQ(number<std::int32_t>("1.5"), std::nullopt);
  EXPECT_EQ(number<std::int32_t>("+-5"), std::nullopt);
  EXPECT_EQ(number<std::int32_t>(""), std::nullopt);
  EXPECT_EQ(number<float>("1e3"), 1000.0F);
  EXPECT_EQ(number<float>("-0x10"), -16.0F);
  EXPECT_EQ(number<float>("0x-10"), std::nullopt);
  EXPECT_EQ(number<double>("1."), 1.0);
  EXPECT_EQ(number<double>("1.0x"), std::nullopt);
}

// Short decimals take another way than long ones.
template <class T>
void expect_as_from_chars(const std::string& text) {
  T expected = 0;
  std::from_chars(text.data(), text.data() + text.size(), expected);
  const std::optional<T> read = number<T>(text);
  ASSERT_TRUE(read) << text;
  ASSERT_EQ(std::memcmp(&*read, &expected, sizeof(T)), 0) << text << " " << *read;
}

TEST(CsvNumber, IsRoundedAsFromCharsDoes) {
  const testing::TestSeed seed(7);
  std::mt19937_64 draw(seed.value());
  for (int i = 0; i < 50'000; ++i) {
    std::string text = std::to_string(draw() >> (draw() % 64));
    const std::size_t point = draw() % (text.size() + 1);
    text.insert(point, ".");
    if (draw() % 2 == 0) text.insert(0, "-");
    expect_as_from_chars<float>(text);
    expect_as_from_chars<double>(text);
  }
  for (const char* text : {"-0", "0.0", ".5", "1.", "16777216", "16777217", "0.00000000001"}) {
    expect_as_from_chars<float>(text);
    expect_as_from_chars<double>(text);
  }
  for (const char* text : {"", "-", ".", "-.", "1.2.3", "1-2"}) {
    EXPECT_EQ(number<float>(text), std::nullopt) << text;
  }
}

TEST(CsvNumber, MayBeWithoutEnd) {
  EXPECT_EQ(number<float>(" inf"), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(*number<float>("nan")));
  EXPECT_EQ(number<float>("-1e99"), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(number<double>("1e-999"), 0.0);
}

// The sign of the exponent alone decided, or the place of the point: 0 came as infinite.
TEST(CsvNumber, OutOfRangeIsWhatItsFirstDigitStandsFor) {
  const std::string zeros(400, '0');
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(number<double>("00." + zeros + "1"), 0.0);
  EXPECT_TRUE(std::signbit(*number<double>("-00." + zeros + "1")));
  EXPECT_EQ(number<double>("0." + zeros + "123e+5"), 0.0);
  EXPECT_EQ(number<double>("5" + zeros + "E-5"), kInfinity);
  EXPECT_EQ(number<float>("-4" + zeros.substr(0, 60) + "E-5"),
            -std::numeric_limits<float>::infinity());
  EXPECT_EQ(number<double>("00" + zeros + "e999999999999999999999"), 0.0);
  EXPECT_EQ(number<double>("1e-999999999999999999999"), 0.0);
  EXPECT_EQ(number<double>("1e+999999999999999999999"), kInfinity);
  for (const char* text : {"0xinf", "0xnan", "-0xinf", "-0XNAN"})
    EXPECT_EQ(number<double>(text), std::nullopt) << text;
}

// The column got another number.
TEST(CsvDefault, IsRefusedWhereItsDtypeDoesNotHaveIt) {
  const auto error_of_default = [](at::ScalarType dtype, Nest value) {
    return error_of([&] {
      Dataset::csv(StringTensor("none"), {.columns = {{.dtype = dtype, .default_value = value}}});
    });
  };
  EXPECT_THAT(error_of_default(at::kInt, 5'000'000'000).message(),
              ::testing::HasSubstr("a default that int32 has, for column 0, got 5000000000"));
  EXPECT_EQ(error_of_default(at::kFloat, 1e300).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of_default(at::kFloat, 16'777'217).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of_default(at::kDouble, (std::int64_t{1} << 53) + 1).code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
