// column_search
