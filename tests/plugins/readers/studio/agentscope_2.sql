BEGIN TRANSACTION;
CREATE TABLE "friday_app_message_table" ("id" varchar PRIMARY KEY NOT NULL, "name" varchar NOT NULL, "role" varchar NOT NULL, "content" json NOT NULL, "timestamp" varchar NOT NULL, "reply_id" varchar NOT NULL, CONSTRAINT "FK_f38ba43816f589cb038d09c2855" FOREIGN KEY ("reply_id") REFERENCES "friday_app_reply_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "friday_app_reply_table" ("id" varchar PRIMARY KEY NOT NULL, "startTimeStamp" varchar NOT NULL, "endTimeStamp" varchar, "finished" boolean NOT NULL);
CREATE TABLE "input_request_table" ("requestId" varchar PRIMARY KEY NOT NULL, "agentId" varchar NOT NULL, "agentName" varchar NOT NULL, "structuredInput" json, "run_id" varchar NOT NULL, CONSTRAINT "FK_a11e53a82c276f065bd1d2cc560" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "message_table" ("id" varchar PRIMARY KEY NOT NULL, "msg" json NOT NULL, "speech" json, "run_id" varchar NOT NULL, "replyId" varchar NOT NULL, CONSTRAINT "FK_3986bdb99ba55f92d49d23d2a40" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION, CONSTRAINT "FK_769be4acc8312b8812d63341de6" FOREIGN KEY ("replyId") REFERENCES "reply_table" ("replyId") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "migrations" ("id" integer PRIMARY KEY AUTOINCREMENT NOT NULL, "timestamp" bigint NOT NULL, "name" varchar NOT NULL);
INSERT INTO "migrations" VALUES(1,1730000000000,'AddMessageReplyForeignKey1730000000000');
INSERT INTO "migrations" VALUES(2,1740000000000,'MigrateSpanTable1740000000000');
CREATE TABLE "reply_table" ("replyId" varchar PRIMARY KEY NOT NULL, "replyRole" varchar NOT NULL, "replyName" varchar NOT NULL, "createdAt" varchar NOT NULL, "finishedAt" varchar, "run_id" varchar NOT NULL, CONSTRAINT "FK_b9760204bfdb364a189b5501fe7" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "run_table" ("id" varchar PRIMARY KEY NOT NULL, "project" varchar NOT NULL, "name" varchar NOT NULL, "timestamp" varchar NOT NULL, "run_dir" varchar NOT NULL, "pid" integer NOT NULL, "status" varchar CHECK( "status" IN ('running','pending','done','unknown') ) NOT NULL DEFAULT ('done'));
CREATE TABLE "span_table" ("id" varchar PRIMARY KEY NOT NULL, "traceId" varchar NOT NULL, "spanId" varchar NOT NULL, "traceState" varchar, "parentSpanId" varchar, "flags" integer, "name" varchar NOT NULL, "kind" integer NOT NULL, "startTimeUnixNano" varchar NOT NULL, "endTimeUnixNano" varchar NOT NULL, "attributes" json NOT NULL, "droppedAttributesCount" integer, "events" json, "droppedEventsCount" integer, "links" json, "droppedLinksCount" integer, "status" json NOT NULL, "resource" json NOT NULL, "scope" json NOT NULL, "statusCode" integer, "serviceName" varchar, "operationName" varchar, "instrumentationName" varchar, "instrumentationVersion" varchar, "model" varchar, "inputTokens" integer, "outputTokens" integer, "totalTokens" integer, "conversationId" varchar, "latencyNs" float NOT NULL);
INSERT INTO "span_table" VALUES('e988816ef3ba0b5f','eb7afe2ce873142d3504e38f016964a4','e988816ef3ba0b5f','','d8c84d7f02e73913',256,'chat m',1,'1795482026765992200','1795482026845974500','{"gen_ai":{"operation":{"name":"chat"},"provider":{"name":"openai"},"request":{"model":"m"},"tool":{"definitions":[{"type":"function","name":"look","description":"Look what grows somewhere.","parameters":{"properties":{"place":{"type":"string"}},"required":["place"],"type":"object"}}]},"input":{"messages":[{"role":"system","parts":[{"type":"text","content":"Be brief."}],"name":"system","finish_reason":"stop"},{"role":"user","parts":[{"type":"text","content":"What grows in the woods?"}],"name":"visitor","finish_reason":"stop"},{"role":"assistant","parts":[],"name":"guide","finish_reason":"stop"}]},"conversation":{"id":"7ddc9ff1aade42a890ea1008a012ee51"},"response":{"id":"r","finish_reasons":["stop"]},"usage":{"input_tokens":7,"output_tokens":3},"output":{"messages":[{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"look","arguments":{"place":"woods"}}],"finish_reason":"stop"}]}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"71bc0fc8-1681-4dcc-83c3-709428648bf3"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"2.0.10","attributes":{}}',1,'unknown_service:python','chat',NULL,NULL,'m',7,3,10,'7ddc9ff1aade42a890ea1008a012ee51',79982336.0);
INSERT INTO "span_table" VALUES('e84d0a7dd15377d3','eb7afe2ce873142d3504e38f016964a4','e84d0a7dd15377d3','','d8c84d7f02e73913',256,'execute_tool look',1,'1795482026885865200','1795482026886226000','{"gen_ai":{"operation":{"name":"execute_tool"},"tool":{"call":{"id":"c1","arguments":{"place":"woods"},"result":"ToolResponse(content=[TextBlock(type=''text'', text=''oaks'', id=''86352aae9304474184431269d31c589e'', created_at=''2026-11-24T01:00:26.886022'', finished_at=None)], state=<ToolResultState.SUCCESS: ''success''>, metadata={}, id=''c1'')"},"name":"look"},"conversation":{"id":"7ddc9ff1aade42a890ea1008a012ee51"}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"71bc0fc8-1681-4dcc-83c3-709428648bf3"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"2.0.10","attributes":{}}',1,'unknown_service:python','execute_tool',NULL,NULL,NULL,NULL,NULL,NULL,'7ddc9ff1aade42a890ea1008a012ee51',360704.0);
INSERT INTO "span_table" VALUES('a569c0405569d1ea','eb7afe2ce873142d3504e38f016964a4','a569c0405569d1ea','','d8c84d7f02e73913',256,'chat m',1,'1795482026894459400','1795482026900177400','{"gen_ai":{"operation":{"name":"chat"},"provider":{"name":"openai"},"request":{"model":"m"},"tool":{"definitions":[{"type":"function","name":"look","description":"Look what grows somewhere.","parameters":{"properties":{"place":{"type":"string"}},"required":["place"],"type":"object"}}]},"input":{"messages":[{"role":"system","parts":[{"type":"text","content":"Be brief."}],"name":"system","finish_reason":"stop"},{"role":"user","parts":[{"type":"text","content":"What grows in the woods?"}],"name":"visitor","finish_reason":"stop"},{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"look","arguments":{"place":"woods"}},{"type":"tool_call_response","id":"c1","response":"[\"TextBlock(type=''text'', text=''oaks'', id=''86352aae9304474184431269d31c589e'', created_at=''2026-11-24T01:00:26.886022'', finished_at=None)\"]"}],"name":"guide","finish_reason":"stop"}]},"conversation":{"id":"7ddc9ff1aade42a890ea1008a012ee51"},"response":{"id":"r","finish_reasons":["stop"]},"usage":{"input_tokens":7,"output_tokens":3},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Oaks grow there."}],"finish_reason":"stop"}]}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"71bc0fc8-1681-4dcc-83c3-709428648bf3"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"2.0.10","attributes":{}}',1,'unknown_service:python','chat',NULL,NULL,'m',7,3,10,'7ddc9ff1aade42a890ea1008a012ee51',5718016.0);
INSERT INTO "span_table" VALUES('d8c84d7f02e73913','eb7afe2ce873142d3504e38f016964a4','d8c84d7f02e73913','','',256,'invoke_agent guide',1,'1795482026759198200','1795482026905607700','{"gen_ai":{"operation":{"name":"invoke_agent"},"agent":{"name":"guide","description":"The agent class."},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"What grows in the woods?"}],"name":"visitor","finish_reason":"stop"}]},"conversation":{"id":"7ddc9ff1aade42a890ea1008a012ee51"},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Oaks grow there."}],"name":"guide","finish_reason":"stop"}]}},"agentscope":{"agent":{"reply_id":"ba325b5aacba4130859159cdb4856237"}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"71bc0fc8-1681-4dcc-83c3-709428648bf3"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"2.0.10","attributes":{}}',1,'unknown_service:python','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'7ddc9ff1aade42a890ea1008a012ee51',146409472.0);
INSERT INTO "span_table" VALUES('d1b0540a931e78cc','8da30ecf4ef6fdb5dca14bb07e2c8ea6','d1b0540a931e78cc','','35a26f13f677dc89',256,'chat m',1,'1795482026911442200','1795482026916275000','{"gen_ai":{"operation":{"name":"chat"},"provider":{"name":"openai"},"request":{"model":"m"},"tool":{"definitions":[{"type":"function","name":"look","description":"Look what grows somewhere.","parameters":{"properties":{"place":{"type":"string"}},"required":["place"],"type":"object"}}]},"input":{"messages":[{"role":"system","parts":[{"type":"text","content":"Be brief."}],"name":"system","finish_reason":"stop"},{"role":"user","parts":[{"type":"text","content":"What grows in the woods?"}],"name":"visitor","finish_reason":"stop"},{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"look","arguments":{"place":"woods"}},{"type":"tool_call_response","id":"c1","response":"[\"TextBlock(type=''text'', text=''oaks'', id=''86352aae9304474184431269d31c589e'', created_at=''2026-11-24T01:00:26.886022'', finished_at=None)\"]"},{"type":"text","content":"Oaks grow there."}],"name":"guide","finish_reason":"stop"},{"role":"user","parts":[{"type":"text","content":"How old do they get?"}],"name":"visitor","finish_reason":"stop"}]},"conversation":{"id":"7ddc9ff1aade42a890ea1008a012ee51"},"response":{"id":"r","finish_reasons":["stop"]},"usage":{"input_tokens":7,"output_tokens":3},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Up to 1000 years."}],"finish_reason":"stop"}]}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"71bc0fc8-1681-4dcc-83c3-709428648bf3"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"2.0.10","attributes":{}}',1,'unknown_service:python','chat',NULL,NULL,'m',7,3,10,'7ddc9ff1aade42a890ea1008a012ee51',4832768.0);
INSERT INTO "span_table" VALUES('35a26f13f677dc89','8da30ecf4ef6fdb5dca14bb07e2c8ea6','35a26f13f677dc89','','',256,'invoke_agent guide',1,'1795482026911003400','1795482026921032700','{"gen_ai":{"operation":{"name":"invoke_agent"},"agent":{"name":"guide","description":"The agent class."},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"How old do they get?"}],"name":"visitor","finish_reason":"stop"}]},"conversation":{"id":"7ddc9ff1aade42a890ea1008a012ee51"},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"Up to 1000 years."}],"name":"guide","finish_reason":"stop"}]}},"agentscope":{"agent":{"reply_id":"03c5b3ab13e34e5a9daca6c9885a1c04"}}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"telemetry":{"sdk":{"language":"python","name":"opentelemetry","version":"1.45.2"}},"service":{"instance":{"id":"71bc0fc8-1681-4dcc-83c3-709428648bf3"},"name":"unknown_service:python"}}}','{"name":"agentscope","version":"2.0.10","attributes":{}}',1,'unknown_service:python','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'7ddc9ff1aade42a890ea1008a012ee51',10029312.0);
CREATE TABLE "typeorm_metadata" ("type" varchar NOT NULL, "database" varchar, "schema" varchar, "table" varchar, "name" varchar, "value" text);
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'run_view','SELECT COUNT(DISTINCT "run"."project") AS "totalProjects", COUNT(*) AS "totalRuns", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 month'') 
            THEN "run"."project" END) AS "projectsMonthAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 month'')
            THEN 1 END) AS "runsMonthAgo", COUNT(DISTINCT CASE  
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-7 days'')
            THEN "run"."project" END) AS "projectsWeekAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-7 days'')
            THEN 1 END) AS "runsWeekAgo", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 year'')
            THEN "run"."project" END) AS "projectsYearAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 year'')
            THEN 1 END) AS "runsYearAgo", (
            WITH RECURSIVE
            months(date) AS (
                SELECT date(''now'', ''start of month'', ''-11 months'')
                UNION ALL
                SELECT date(date, ''+1 month'')
                FROM months
                WHERE date < date(''now'', ''start of month'')
            ),
            monthly_counts AS (
                SELECT 
                    strftime(''%Y-%m'', months.date) as month,
                    COUNT(CASE 
                        WHEN strftime(''%Y-%m'', "run"."timestamp") = strftime(''%Y-%m'', months.date) 
                        THEN 1 
                    END) as count
                FROM months
                LEFT JOIN run_table run ON strftime(''%Y-%m'', "run"."timestamp") = strftime(''%Y-%m'', months.date)
                GROUP BY strftime(''%Y-%m'', months.date)
                ORDER BY month DESC
            )
            SELECT json_group_array(
                json_object(
                    ''month'', month,
                    ''count'', count
                )
            )
            FROM monthly_counts
        ) AS "monthlyRuns" FROM "run_table" "run"');
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'model_invocation_view','SELECT COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    THEN 1
                END) AS "totalModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "totalTokens", COUNT(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            THEN 1
        END) AS "chatModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 month'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensMonthAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-7 days'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensWeekAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 year'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensYearAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 month'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsMonthAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-7 days'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsWeekAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 year'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsYearAgo" FROM "span_table" "span" INNER JOIN "run_table" "run" ON "run"."id" = "span"."conversationId"');
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'friday_app_reply_view','SELECT "r"."id" AS "id", "r"."startTimeStamp" AS "startTimeStamp", "r"."endTimeStamp" AS "endTimeStamp", "r"."finished" AS "finished", "m"."name" AS "name", "m"."role" AS "role", (
                SELECT json_group_array(json(content))
                FROM (
                    SELECT content 
                    FROM friday_app_message_table
                    WHERE reply_id = r.id
                    ORDER BY timestamp ASC
                )
            ) AS "content" FROM "friday_app_reply_table" "r" LEFT JOIN "friday_app_message_table" "m" ON "m"."reply_id" = "r"."id" GROUP BY "r"."id"');
CREATE INDEX "IDX_a9c90d6dcc77a52eee70759192" ON "span_table" ("conversationId") ;
CREATE INDEX "IDX_9b03613341a28f3adc4b25bede" ON "span_table" ("totalTokens") ;
CREATE INDEX "IDX_b3cef24d908083f74e0296f019" ON "span_table" ("outputTokens") ;
CREATE INDEX "IDX_eed52eb7930ae0a16a637ae0fc" ON "span_table" ("inputTokens") ;
CREATE INDEX "IDX_1a65be629f1e8717ae936f237f" ON "span_table" ("model") ;
CREATE INDEX "IDX_6a42dec2234c4d8f03e4636a1c" ON "span_table" ("instrumentationName") ;
CREATE INDEX "IDX_50345441e37fcaa6a81f9e1f23" ON "span_table" ("operationName") ;
CREATE INDEX "IDX_597fb8acbd91e2eb45550a3a27" ON "span_table" ("serviceName") ;
CREATE INDEX "IDX_bdb32c4f77e940ff499cfb66be" ON "span_table" ("latencyNs") ;
CREATE INDEX "IDX_10fc9e48821fafed09920bbae5" ON "span_table" ("statusCode") ;
CREATE INDEX "IDX_23807b42325ccc1f324741edea" ON "span_table" ("startTimeUnixNano") ;
CREATE INDEX "IDX_ae666e33c6833fb99bba2d8c0d" ON "span_table" ("parentSpanId") ;
CREATE INDEX "IDX_fca75f17a2ac51391c28a1fe6c" ON "span_table" ("spanId") ;
CREATE INDEX "IDX_e53c038912e2db29c8ab91e23a" ON "span_table" ("traceId") ;
CREATE VIEW "run_view" AS SELECT COUNT(DISTINCT "run"."project") AS "totalProjects", COUNT(*) AS "totalRuns", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 month') 
            THEN "run"."project" END) AS "projectsMonthAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 month')
            THEN 1 END) AS "runsMonthAgo", COUNT(DISTINCT CASE  
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-7 days')
            THEN "run"."project" END) AS "projectsWeekAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-7 days')
            THEN 1 END) AS "runsWeekAgo", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 year')
            THEN "run"."project" END) AS "projectsYearAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 year')
            THEN 1 END) AS "runsYearAgo", (
            WITH RECURSIVE
            months(date) AS (
                SELECT date('now', 'start of month', '-11 months')
                UNION ALL
                SELECT date(date, '+1 month')
                FROM months
                WHERE date < date('now', 'start of month')
            ),
            monthly_counts AS (
                SELECT 
                    strftime('%Y-%m', months.date) as month,
                    COUNT(CASE 
                        WHEN strftime('%Y-%m', "run"."timestamp") = strftime('%Y-%m', months.date) 
                        THEN 1 
                    END) as count
                FROM months
                LEFT JOIN run_table run ON strftime('%Y-%m', "run"."timestamp") = strftime('%Y-%m', months.date)
                GROUP BY strftime('%Y-%m', months.date)
                ORDER BY month DESC
            )
            SELECT json_group_array(
                json_object(
                    'month', month,
                    'count', count
                )
            )
            FROM monthly_counts
        ) AS "monthlyRuns" FROM "run_table" "run";
CREATE VIEW "model_invocation_view" AS SELECT COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    THEN 1
                END) AS "totalModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "totalTokens", COUNT(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            THEN 1
        END) AS "chatModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 month') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensMonthAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-7 days') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensWeekAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 year') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensYearAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 month') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsMonthAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-7 days') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsWeekAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 year') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsYearAgo" FROM "span_table" "span" INNER JOIN "run_table" "run" ON "run"."id" = "span"."conversationId";
CREATE VIEW "friday_app_reply_view" AS SELECT "r"."id" AS "id", "r"."startTimeStamp" AS "startTimeStamp", "r"."endTimeStamp" AS "endTimeStamp", "r"."finished" AS "finished", "m"."name" AS "name", "m"."role" AS "role", (
                SELECT json_group_array(json(content))
                FROM (
                    SELECT content 
                    FROM friday_app_message_table
                    WHERE reply_id = r.id
                    ORDER BY timestamp ASC
                )
            ) AS "content" FROM "friday_app_reply_table" "r" LEFT JOIN "friday_app_message_table" "m" ON "m"."reply_id" = "r"."id" GROUP BY "r"."id";
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('migrations',2);
COMMIT;
