// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using Strings = std::vector<std::string>;

class ListFiles : public ::testing::Test {
 protected:
  ListFiles() {
    for (const char* name : {"b.py", "c.py", "a.txt", "d.pyc"}) directory_.write(name, "x");
  }
  Dataset list(const Strings& patterns, ListFilesOptions options = {.shuffle = false}) const {
    Strings paths;
    for (const std::string& pattern : patterns) paths.push_back(directory_.file(pattern));
    return Dataset::list_files(paths, options);
  }
  Strings names(const Dataset& dataset) const {
    Strings names = elements_of(dataset);
    for (std::string& name : names) name = name.substr(directory_.path().size() + 2);
    return names;
  }

  ScratchDirectory directory_;
};

TEST_F(ListFiles, YieldsNamesInOrder) {
  EXPECT_THAT(names(list({"*"})), ElementsAre("a.txt'", "b.py'", "c.py'", "d.pyc'"));
  EXPECT_THAT(names(list({"?.py"})), ElementsAre("b.py'", "c.py'"));
  EXPECT_THAT(names(list({"[bd].*"})), ElementsAre("b.py'", "d.pyc'"));
  EXPECT_EQ(list({"*"}).cardinality(), 4);
}

TEST_F(ListFiles, SortsTheMatchesOfAllPatternsTogether) {
  EXPECT_THAT(names(list({"*.py", "*.txt"})), ElementsAre("a.txt'", "b.py'", "c.py'"));
}

TEST_F(ListFiles, ShufflesThem) {
  const Dataset shuffled = list({"*"}, {.shuffle = true, .seed = 3});
  EXPECT_THAT(names(shuffled), UnorderedElementsAre("a.txt'", "b.py'", "c.py'", "d.pyc'"));
  EXPECT_EQ(names(list({"*"}, {.shuffle = true, .seed = 3})),
            names(list({"*"}, {.shuffle = true, .seed = 3})));
}

TEST_F(ListFiles, NamesPatternsThatMatchNothing) {
  const Error error = error_of([&] { list({"zz*"}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr(directory_.file("zz*")));
  EXPECT_EQ(error_of([] { Dataset::list_files({}); }).code(), ErrorCode::invalid_argument);
}

TEST_F(ListFiles, FindsTheFilesWhenItIsBuilt) {
  const Dataset found = list({"*.py"});
  directory_.write("e.py", "x");
  EXPECT_THAT(names(found), ElementsAre("b.py'", "c.py'"));
}

TEST_F(ListFiles, FeedsReaders) {
  EXPECT_THAT(elements_of(Dataset::text_line(list({"*.py"}))), ElementsAre("'x'", "'x'"));
}

}  // namespace
}  // namespace cohort::data
